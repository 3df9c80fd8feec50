"""The pages say what the code says, and lead to one another."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import generated
import hooks
import pytest
from doc_pages import PAGES, ROOT, blocks

import fedloom
from fedloom.cli.flags import FLAGS
from fedloom.engine.fleet import FLEETS
from fedloom.engine.selection import SELECTIONS
from fedloom.execution import EXECUTORS
from fedloom.federation.networks import NETWORKS
from fedloom.methods import REGISTER

DOCS = ROOT / "docs"
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<text>.*?)(?: \{ #(?P<id>[\w-]+) \})?$", re.MULTILINE)


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The ids of the headings of a page, as mkdocs makes them."""
    found = set()
    for heading in _HEADING.finditer(prose(page)):
        plain = re.sub(r"[^\w\s-]", "", heading["text"]).strip().lower()
        found.add(heading["id"] or re.sub(r"[-\s]+", "-", plain))
    return found


def test_generated_parts_are_what_the_code_says_today() -> None:
    stale = [
        str(page.relative_to(ROOT))
        for page in generated.pages()
        if generated.fill(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")
    ]
    assert not stale, f"out of date: {', '.join(stale)}; run `python docs/build.py --pages`"


def test_the_pictures_are_those_of_the_recorded_results() -> None:
    kept = {file: file.read_text(encoding="utf-8") for file in generated.PICTURES.iterdir()}
    assert kept == generated.pictures(), "out of date: run `python docs/build.py --pages`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in _LINK.findall(prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.relative_to(ROOT)} links to {target}, which is not there"
        assert not anchor or anchor in anchors(there), f"{page.relative_to(ROOT)} links to {target}: no such heading"


def test_every_page_is_in_the_contents_of_the_site() -> None:
    contents = "\n".join([(ROOT / "mkdocs.yml").read_text(encoding="utf-8"), *hooks.method_pages()])
    missing = [page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).as_posix() not in contents]
    assert not missing


def test_every_method_has_a_page_and_every_page_a_method() -> None:
    pages = {page.stem for page in (DOCS / "methods").glob("*.md")} - {"index"}
    assert pages == {entry.name for entry in REGISTER.shipped()}


def test_type_checkers_are_told_of_every_method() -> None:
    assert generated.LISTED.read_text(encoding="utf-8") == generated.listed(), "run `python docs/build.py --pages`"


@pytest.mark.parametrize(
    ("option", "names"),
    [("--model", NETWORKS), ("--selection", SELECTIONS), ("--fleet", FLEETS), ("--executor", EXECUTORS)],
)
def test_the_help_of_a_flag_names_all_that_it_takes(option: str, names: Iterable[str]) -> None:
    (flag,) = (flag for flag in FLAGS if flag.option == option)
    assert not [name for name in names if name not in flag.help]


def test_every_public_name_has_a_docstring_and_is_in_the_reference() -> None:
    reference = (DOCS / "reference/api/index.md").read_text(encoding="utf-8")
    for name in fedloom.__all__:
        thing = getattr(fedloom, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, f"fedloom.{name} has no docstring"
        assert f"heading: fedloom.{name}\n" in reference or f"`fedloom.{name}`" in reference, name


def test_every_object_of_the_reference_exists() -> None:
    for page in (DOCS / "reference/api").glob("*.md"):
        for path in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            pkgutil.resolve_name(path)


def test_every_method_has_a_page_with_its_equations_cost_example_and_known_answer() -> None:
    for name in REGISTER:
        page = (DOCS / f"methods/{name}.md").read_text(encoding="utf-8")
        for heading in ("What it solves", "When to use it", "Its equations", "Its cost", "Example", "Its known answer"):
            assert f"## {heading}" in page, f"{name}: {heading}"
        assert f"<!-- generated: claims {name} -->" in page


def test_formulas_become_mathml_without_a_word_that_is_not_known() -> None:
    for page in generated.pages():
        text = page.read_text(encoding="utf-8")
        shown = hooks.on_page_markdown(text)
        formulas = re.findall(r'<div class="formula">(<math.*?</math>)</div>', shown, re.DOTALL)
        assert len(formulas) == text.count("```math")
        for formula in formulas:
            ElementTree.fromstring(formula)
    root = ElementTree.fromstring(hooks.mathml(r"\frac{1}{2}"))
    assert [one.text for one in root.iter() if one.text] == ["1", "2"]
    with pytest.raises(ValueError, match="not known"):
        hooks.mathml(r"\fraction{1}{2}")


def test_every_environment_variable_is_documented() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    page = (DOCS / "reference/command-line.md").read_text(encoding="utf-8")
    used = set(re.findall(r"FEDLOOM_[A-Z]+", code))
    assert used == set(re.findall(r"`(FEDLOOM_[A-Z]+)`", page))


def test_the_page_on_run_folders_names_every_file_and_every_key(tmp_path: Path) -> None:
    data = fedloom.federate("digits", clients=4)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    run = fedloom.train(problem, fedloom.Local(), rounds=2, out=tmp_path / "run", checkpoint_every=1)
    fedloom.write_report(run.folder, run.folder / "report.html")
    page = (DOCS / "reference/run-folder.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./]+)`", page))
    files = {path.name + ("/" if path.is_dir() else "") for path in run.folder.iterdir() if path.name[0] != "."}
    summary = json.loads((run.folder / "summary.json").read_text())
    assert files | set(run.history[1]) | set(run.history[1]["evaluation"]["loss"]) | set(summary) <= named


def test_the_picture_in_the_readme_is_there_and_not_heavy() -> None:
    picture = DOCS / "images/report.png"
    assert "(docs/images/report.png)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert 20_000 < picture.stat().st_size < 400_000


def test_the_worked_example_of_a_method_fails_the_kit_when_a_sign_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedloom.conformance import Limit, check_method, quadratics

    (source,) = (block for block in blocks(DOCS / "how-to/add-a-method.md") if block.title == "fedavgm.py")
    assert source.text.count('state["x"] + v') == 1
    (tmp_path / "wrong_fedavgm.py").write_text(source.text.replace('state["x"] + v', 'state["x"] - v'))
    monkeypatch.syspath_prepend(tmp_path)
    wrong = importlib.import_module("wrong_fedavgm").FedAvgM(lr=0.5, batch=None, steps=1, beta=0.5)
    claim = Limit("one full step finds the optimum", quadratics, lambda known, method: known.optimum, rounds=100)
    (outcome,) = check_method("wrong", wrong, [claim], checks=["known-answer"])
    assert not outcome.passed


class _Loads(HTMLParser):
    """What a page asks for while it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        address = given.get("href") if tag == "link" else given.get("src")
        if address:
            self.addresses.append(address)


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs fedloom[docs]")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": path}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        parser = _Loads()
        parser.feed(page.read_text(encoding="utf-8"))
        elsewhere = [address for address in parser.addresses if "//" in address]
        assert not elsewhere, f"{page.name} loads {elsewhere}"
