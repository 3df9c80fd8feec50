from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from fedloom.errors import RunError
from fedloom.report import write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH (Debian: apt install chromium)")
EVIL = "</script><script>alert(1)</script>"
NAMES = (
    EVIL,
    "<script>alert(1)</script>",
    '"onmouseover="alert(1)" x="',
    "' onmouseover='alert(1)' x='",
    "{{7*7}}{% raw %}{#",
    "</style><style>*{display:none}",
    "]]><!--",
    "&lt;b&gt; & \u2028 \ud800",
)
"""What a user may call a run, a method, a client, a class or a metric."""


class Page(HTMLParser):
    """What matters of a page: tags with their attributes, headings in order, visible text, scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.headings, self.text, self.scripts = [], [], "", []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.text += data

    def handle_endtag(self, tag):
        self.inside = ""

    def having(self, attribute):
        return [attributes[attribute] for _, attributes in self.tags if attribute in attributes]


@pytest.fixture(scope="module")
def report(comparison, tmp_path_factory):
    return write_report(comparison, tmp_path_factory.mktemp("report") / "report.html", target=0.9)


@pytest.fixture(scope="module")
def page(report):
    return Page(report.read_text(encoding="utf-8"))


def write(make_run, tmp_path, **settings):
    out = write_report(make_run(**settings), tmp_path / "report.html")
    return Page(out.read_text(encoding="utf-8"))


def payload(page):
    return json.loads(page.scripts[0])


def test_the_page_asks_the_network_for_nothing(page):
    assert not [value for value in page.having("src") + page.having("href") if not value.startswith("#")]
    assert not [tag for tag, _ in page.tags if tag in ("link", "iframe", "img", "object", "embed", "base")]
    (policy,) = [each["content"] for tag, each in page.tags if tag == "meta" and "http-equiv" in each]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in policy


def test_style_and_own_script_name_no_address(report):
    text = report.read_text(encoding="utf-8")
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style
    assert "http" not in text[text.rindex("<script>") :]


def test_plotly_is_in_the_page_exactly_once_and_the_rest_is_small(report, page):
    from plotly.offline import get_plotlyjs

    assert sum("Plotly, Inc." in script for script in page.scripts) == 1
    assert len(page.scripts) == 3
    assert report.stat().st_size < len(get_plotlyjs().encode()) + 400_000


def test_headings_go_down_one_level_at_a_time(page):
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(page.headings, page.headings[1:], strict=False))


def test_every_chart_has_words_and_controls_have_labels(page):
    charts = [each for tag, each in page.tags if tag == "div" and each.get("role") == "img"]
    assert {each["id"].removeprefix("chart-") for each in charts} == set(payload(page)["charts"])
    assert all(each["aria-label"] for each in charts)
    tags = [tag for tag, _ in page.tags]
    assert all(tags[at - 1] == "label" for at, tag in enumerate(tags) if tag in ("select", "input"))


def test_ids_are_unique(page):
    ids = page.having("id")
    assert len(ids) == len(set(ids))


def test_the_page_of_a_comparison_has_all_its_charts(page):
    assert set(payload(page)["charts"]) == {"learning", "clients", "spread", "fates", "measures", "labels"}
    assert set(payload(page)["charts"]["learning"]["axes"]) == {
        "round", "simulated_seconds", "bytes", "gradient_evaluations", "wall_seconds",
    }  # fmt: skip


def test_the_page_says_what_was_run_and_how_to_get_it_again(page, comparison):
    text = page.text
    for words in (
        "central, fedavg and local on digits",
        "20 clients",
        "3 experiments, 3 repeats each",
        "Evaluated: the global model, on all clients, test split.",
        f"fedloom run {comparison}/fedavg/seed-2/config.toml",
        "Dirichlet with α = 0.3",
        "Label distance",
        "partition = ",
        "not reached",
    ):
        assert words in text
    summary = json.loads((comparison / "fedavg/seed-2/summary.json").read_text())
    assert summary["theta_sha256"] in text


def test_paths_below_the_working_folder_are_told_from_there(make_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = write(make_run, tmp_path, where="runs/my run", rounds=2)
    assert "fedloom run 'runs/my run/config.toml'" in page.text
    assert "fedloom report 'runs/my run' --out report.html" in page.text


def test_the_command_of_the_page_says_all_that_was_asked_for(make_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = write_report(make_run("mine", rounds=2), "r.html", "My runs", target=0.5, metric="loss")
    text = Page(out.read_text(encoding="utf-8")).text
    assert "fedloom report mine --out r.html --title 'My runs' --target 0.5 --metric loss\n" in text + "\n"


def test_one_client_a_round_is_one_client(make_run, tmp_path):
    folder = make_run(rounds=2)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("per_round = 10", "per_round = 1"))
    text = Page(write_report(folder, tmp_path / "r.html").read_text(encoding="utf-8")).text
    assert "1 client a round" in text
    assert "1 clients" not in text


def test_a_run_of_a_python_program_has_no_command_to_get_it_again(make_run, tmp_path):
    folder = make_run(rounds=2)
    (folder / "config.toml").write_text('made_by = "python"\nseed = 0\n[method]\nname = "fedavg"\n')
    page = Page(write_report(folder, tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "fedloom run" not in page.text
    assert "made by a Python program" in page.text


def test_a_comparison_that_recorded_its_command_shows_it(make_run, tmp_path):
    make_run("all/fedavg/seed-0", rounds=2)
    (tmp_path / "all/compare.json").write_text(
        json.dumps({"command": ["fedloom", "compare", "fedavg", "--data", "my digits"]})
    )
    page = Page(write_report(tmp_path / "all", tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "fedloom compare fedavg --data 'my digits'" in page.text


def test_a_quiet_run_has_no_section_on_participation_or_measures(make_run, tmp_path):
    page = write(make_run, tmp_path, method="local", lossy=False)
    assert set(payload(page)["charts"]) == {"learning", "clients", "spread", "labels"}


@pytest.fixture
def schedules(make_run, tmp_path):
    """The page of a run that waited and of one that did not, both with a target."""
    for seed, name in enumerate(("rounds", "async")):
        make_run(f"all/{name}", label=name, schedule=name, goal=0.8, rounds=60, seed=seed)
    return write_report(tmp_path / "all", tmp_path / "report.html")


def test_schedules_are_compared_by_the_clock_with_the_fleet_in_time_and_the_input_columns(schedules):
    page = Page(schedules.read_text(encoding="utf-8"))
    charts = payload(page)["charts"]
    assert {"fleet", "features"} <= set(charts)
    views = ("start", "end", "share")
    assert set(charts["fleet"]["figures"]) == {f"{name} {view}" for name in ("rounds", "async") for view in views}
    assert set(charts["features"]["figures"]) == {"rounds", "async"}
    chosen = [each["value"] for tag, each in page.tags if tag == "option" and "selected" in each]
    assert set(chosen) == {"simulated_seconds"}
    assert "To accuracy ≥ 0.8" in page.text
    assert "Staleness is the age of a reply" in page.text
    assert len(json.dumps(charts["fleet"])) < 150_000


def test_a_run_that_waits_for_its_rounds_is_drawn_against_them(make_run, tmp_path):
    page = write(make_run, tmp_path, schedule="rounds", rounds=3)
    assert {each["value"] for tag, each in page.tags if tag == "option" and "selected" in each} == {"round"}
    assert set(payload(page)["charts"]["fleet"]["figures"]) == {"fedavg start"}
    assert "Staleness" not in page.text


def test_an_unfinished_run_is_reported_with_a_word_of_warning(make_run, tmp_path):
    page = write(make_run, tmp_path, finished=False, rounds=4, planned=50)
    assert "fedavg, seed 0 is not finished: round 4 of 50" in page.text
    assert "fedloom resume" in page.text


def test_a_run_with_a_history_alone_is_reported(make_run, tmp_path):
    folder = make_run(rounds=20, finished=False)
    for name in ("config.toml", "data.json"):
        (folder / name).unlink()
    page = Page(write_report(folder, tmp_path / "r.html").read_text(encoding="utf-8"))
    assert set(payload(page)["charts"]) == {"learning", "spread", "fates", "measures"}


def test_a_run_that_was_never_evaluated_is_reported(make_run, tmp_path):
    folder = make_run(method="local", rounds=1, finished=False)
    (folder / "history.jsonl").write_text('{"round": 0}\n{"round": 1}\n')
    page = Page(write_report(folder, tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "No round has been evaluated yet" in page.text


def test_a_run_without_a_single_row_is_an_error(make_run, tmp_path):
    folder = make_run(rounds=1, finished=False)
    (folder / "history.jsonl").write_text("")
    with pytest.raises(RunError, match="nothing to report"):
        write_report(folder, tmp_path / "r.html")


def test_a_target_on_a_metric_that_is_not_there_names_those_that_are(make_run, tmp_path):
    with pytest.raises(RunError, match="no metric 'f1' in these runs; they have: accuracy, loss"):
        write_report(make_run(rounds=1), tmp_path / "r.html", target=0.5, metric="f1")


def test_a_metric_without_a_target_is_refused(make_run, tmp_path):
    with pytest.raises(RunError, match="the metric 'loss' has no value to be reached: give a target"):
        write_report(make_run(rounds=1), tmp_path / "r.html", metric="loss")


def poisoned(make_run, name, where="run"):
    """A run in which all that has a name has this one: run, method, metric, measure, client, class, role, note."""
    text = json.dumps(name)[1:-1]
    folder = make_run(where, rounds=3, schedule="rounds")
    for file in ("data.json", "summary.json", "history.jsonl"):
        path = folder / file
        old = path.read_text().replace("accuracy", text).replace("gradient_norm", text).replace("Dirichlet", text)
        old = old.replace('"fedavg"', f'"{text}"').replace('"source"', f'"{text}"')
        path.write_text(re.sub(r'("(?:labels|classes)": \[)"0"', lambda found: f'{found[1]}"{text}"', old))
    config = folder / "config.toml"
    named = re.sub(r'name = "(?:fedavg)?"', lambda _: f'name = "{text}"', config.read_text())
    config.write_text(named.replace("\\ud800", "?"))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_a_user_wrote_becomes_markup(name, make_run, tmp_path):
    harmless, page = (
        Page(write_report(poisoned(make_run, each, where), tmp_path / "r.html", title=each).read_text(encoding="utf-8"))
        for where, each in (("harmless", re.sub(r"[^\w/:]", "x", name)), ("run", name))
    )
    shown = name.replace("\ud800", "?")
    assert page.text.count(shown) > 5
    assert [(tag, set(each)) for tag, each in page.tags] == [(tag, set(each)) for tag, each in harmless.tags]
    assert not set("<>&") & set(page.scripts[0])
    assert shown in payload(page)["charts"]["learning"]["lines"]
    assert page.scripts[1:] == harmless.scripts[1:]


def test_the_wheel_has_the_templates_and_the_assets():
    root = Path(__file__).parents[2]
    shipped = {file.distribution_path for file in WheelBuilder(str(root)).recurse_included_files()}
    for folder in ("templates", "assets"):
        names = {entry.name for entry in files("fedloom.report").joinpath(folder).iterdir()}
        assert names
        assert {f"fedloom/report/{folder}/{name}" for name in names} <= shipped


def test_reports_are_made_without_the_engine_and_without_torch():
    probe = (
        "import sys, fedloom.report; print(*(name for name in sys.modules if name.startswith(('fedloom.', 'torch'))))"
    )
    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if not name.startswith(("fedloom.report", "fedloom.errors", "fedloom.storage"))]


def test_a_long_history_does_not_swell_the_page(make_run, tmp_path):
    folder = make_run(rounds=1, finished=False)
    row = {
        "bytes_up": 1,
        "bytes_down": 1,
        "simulated_seconds": 1.234567,
        "evaluation": {"accuracy": {"mean": 0.123456}},
    }
    (folder / "history.jsonl").write_text("".join(json.dumps({"round": at} | row) + "\n" for at in range(20_000)))
    out = write_report(folder, tmp_path / "r.html")
    page = Page(out.read_text(encoding="utf-8"))
    assert len(payload(page)["charts"]["learning"]["axes"]["round"]["values"][0]) == 2000
    assert "Long histories are thinned evenly" in page.text
    assert len(page.scripts[0]) < 200_000


def test_the_same_runs_give_the_same_page(make_run, tmp_path):
    folder = make_run(rounds=3)
    out = tmp_path / "r.html"
    assert write_report(folder, out).read_bytes() == write_report(folder, out).read_bytes()


def test_a_folder_as_the_place_gets_a_file_named_report(make_run):
    folder = make_run(rounds=1)
    assert write_report(folder, folder) == folder / "report.html"
    assert oct((folder / "report.html").stat().st_mode)[-3:] == "644"


def test_folders_on_the_way_are_made(make_run, tmp_path):
    assert write_report(make_run(rounds=1), tmp_path / "a/b/r.html").is_file()


def test_a_full_disk_leaves_the_old_page_and_no_litter(make_run, tmp_path, monkeypatch):
    folder = make_run(rounds=1)
    out = tmp_path / "pages" / "r.html"
    before = write_report(folder, out).read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="cannot be written: No space left"):
        write_report(folder, out, title="another")
    assert out.read_bytes() == before
    assert [path.name for path in out.parent.iterdir()] == ["r.html"]


def browse(page: Path, profile: Path, *more: str) -> tuple[str, list[str]]:
    """The page's elements after its scripts ran, and what the browser had to say about it."""
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=2000 --dump-dom"
    )
    command = [str(BROWSER), *flags.split(), *more, f"--user-data-dir={profile}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@in_browser
def test_a_browser_draws_every_chart_without_complaint(report, page, tmp_path):
    dom, complaints = browse(report, tmp_path)
    assert complaints == []
    drawn = Page(dom)
    for name in payload(page)["charts"]:
        assert re.search(rf'<div class="[^"]*js-plotly-plot[^"]*" id="chart-{name}"', dom), name
    assert sum(tag == "svg" and each.get("class") == "main-svg" for tag, each in drawn.tags) >= 6
    assert dom.count('class="js-line"') >= 9
    assert dom.count('class="box"') >= 3
    swatches = [each for _, each in drawn.tags if "data-colour" in each]
    assert len(swatches) == 3
    assert all("background-color" in each["style"] for each in swatches)


FRAMES = """<!doctype html><body>{frames}<script>
addEventListener("load", () => setTimeout(() => {{
  const widths = [...document.querySelectorAll("iframe")].map((frame) =>
    [frame.clientWidth, frame.contentDocument.documentElement.scrollWidth].join(" "));
  document.body.dataset.widths = widths.join(", ");
}}, 500));
</script>"""


@in_browser
def test_no_page_is_wider_than_its_screen(report, schedules, tmp_path):
    wanted = [(page, width) for page in (report, schedules) for width in (390, 1280, 1920)]
    frames = [f'<iframe src="{page.as_uri()}" style="width:{width}px"></iframe>' for page, width in wanted]
    (tmp_path / "frames.html").write_text(FRAMES.format(frames="".join(frames)))
    flags = ("--allow-file-access-from-files", "--hide-scrollbars")
    dom, _ = browse(tmp_path / "frames.html", tmp_path / "profile", *flags)
    found = re.search('data-widths="([^"]*)"', dom)
    assert found is not None
    assert found[1] == ", ".join(f"{width} {width}" for _, width in wanted)


@in_browser
def test_a_browser_draws_the_fleet_and_the_columns_without_complaint(schedules, tmp_path):
    dom, complaints = browse(schedules, tmp_path / "profile")
    assert complaints == []
    for name in ("fleet", "features", "relations"):
        assert re.search(rf'<div class="[^"]*js-plotly-plot[^"]*" id="chart-{name}"', dom), name
    assert dom.count('class="point"') > 100


PROBE = """<script>
addEventListener("error", (event) => { document.body.dataset.failed = event.message; });
let choices = 0;
for (const select of document.querySelectorAll("select[data-chart]")) {
  const seen = new Set();
  for (const option of [...select.options].filter((each) => !each.disabled)) {
    select.value = option.value;
    select.dispatchEvent(new Event("change"));
    const plot = document.getElementById(`chart-${select.dataset.chart}`);
    seen.add(JSON.stringify(plot.data.map((trace) => [trace.type, trace.x, trace.y, trace.z, trace.base])));
    choices += 1;
  }
  const { chart, key } = select.dataset;
  if (seen.size !== select.options.length) document.body.dataset.failed = `${chart} ${key}`;
  select.selectedIndex = 0;
  select.dispatchEvent(new Event("change"));
}
const head = document.querySelector("table.results th[data-sort='2'] button");
head.click();
document.body.dataset.choices = choices;
</script></body>"""


@in_browser
def test_every_choice_draws_something_of_its_own_and_the_table_sorts(report, tmp_path):
    text = report.read_text(encoding="utf-8")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace("</body>", PROBE)
    probed = tmp_path / "probed.html"
    probed.write_text(text, encoding="utf-8")
    drawn = Page(browse(probed, tmp_path / "profile")[0])
    (body,) = [each for tag, each in drawn.tags if tag == "body"]
    assert "data-failed" not in body
    assert int(body["data-choices"]) >= 25
    (order,) = [each["aria-sort"] for _, each in drawn.tags if "aria-sort" in each]
    assert order == "ascending"
    results = drawn.text[drawn.text.index("Runs") :]
    assert results.index("local") < results.index("fedavg") < results.index("central")


@in_browser
def test_every_choice_of_the_fleet_draws_something_of_its_own(schedules, tmp_path):
    text = schedules.read_text(encoding="utf-8")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace("</body>", PROBE)
    probed = tmp_path / "probed.html"
    probed.write_text(text, encoding="utf-8")
    (body,) = [each for tag, each in Page(browse(probed, tmp_path / "profile")[0]).tags if tag == "body"]
    assert "data-failed" not in body


@in_browser
@pytest.mark.parametrize("name", [EVIL, '"onmouseover="alert(1)" x="'])
def test_a_browser_runs_no_script_that_a_user_smuggled_in(name, make_run, tmp_path):
    out = write_report(poisoned(make_run, name), tmp_path / "r.html", title=name)
    dom, complaints = browse(out, tmp_path / "profile")
    assert complaints == []
    assert dom.count("js-plotly-plot") >= 4


NO_FIGURE = """<script>
addEventListener("error", (event) => { document.body.dataset.failed = event.message; });
const [metric, view] = ["metric", "view"].map((key) => document.querySelector(`[data-chart=clients][data-key=${key}]`));
const choose = (select, value) => { select.value = value; select.dispatchEvent(new Event("change")); };
choose(view, "size");
choose(metric, "loss");
document.body.dataset.view = view.value;
document.body.dataset.disabled = [...view.options].filter((each) => each.disabled).map((each) => each.value).join();
choose(metric, "accuracy");
document.body.dataset.after = [...view.options].filter((each) => each.disabled).length;
</script></body>"""


@in_browser
def test_a_choice_for_which_there_is_no_figure_cannot_be_made(comparison, tmp_path):
    text = write_report(comparison, tmp_path / "r.html").read_text(encoding="utf-8")
    start = text.index(">", text.index('id="payload"')) + 1
    end = text.index("</script>", start)
    payload = json.loads(text[start:end])
    del payload["charts"]["clients"]["figures"]["loss size"]
    text = text[:start] + json.dumps(payload).replace("<", "\\u003c") + text[end:]
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace("</body>", NO_FIGURE)
    page = tmp_path / "probed.html"
    page.write_text(text, encoding="utf-8")
    (body,) = [each for tag, each in Page(browse(page, tmp_path / "profile")[0]).tags if tag == "body"]
    assert "data-failed" not in body
    assert (body["data-view"], body["data-disabled"], body["data-after"]) == ("box", "size", "0")
