"""One register for every kind: names, import paths, and what other installed packages offer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedloom.errors import ConfigError
from fedloom.register import Register

PACKAGE = '''
from dataclasses import dataclass

from fedloom.methods import register
from fedloom.methods.fedavg import FedAvg


def declared():
    from fedloom.conformance import DECLARATIONS

    return DECLARATIONS["fedavg"]


@register("newdyn", family="optimisation", paper="A paper", summary="a newcomer", declaration=declared)
@dataclass(frozen=True)
class NewDyn(FedAvg):
    """A newcomer."""

    alpha: float = 0.1
    """How much."""
'''
SCRIPT = """
import sys, warnings
sys.path.append(sys.argv[1])
import generated
from fedloom.cli.methods import card
from fedloom.conformance import DECLARATIONS, check_names
from fedloom.experiment import Settings, make_experiment
from fedloom.methods import REGISTER, lookup

assert make_experiment(Settings({"method": {"name": "newdyn", "alpha": 0.5}})).method.alpha == 0.5
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert "newdyn" in REGISTER and "broken" not in REGISTER
    listed = list(REGISTER)
assert listed.count("newdyn") == 1 and "broken" not in listed and REGISTER["fedavg"].cls.__name__ == "FedAvg"
texts = sorted(str(one.message) for one in said)
assert len(texts) == 2 and texts[0].startswith("newcomers offers the method 'broken', which cannot be had: No module")
assert texts[1].startswith("newcomers offers the method 'fedavg', which cannot be had: there is a method 'fedavg'")
assert {one["name"]: one["meaning"] for one in card(lookup("newdyn"))["parameters"]}["alpha"] == "How much."
assert DECLARATIONS["newdyn"] is DECLARATIONS["fedavg"] is DECLARATIONS["newcomers:NewDyn"]
assert check_names("newdyn") == check_names("fedavg")
assert "`newdyn`" in generated.register() and "#### `newdyn`" in generated.method_options()
print("fine")
"""


def numbers() -> Register[int]:
    return Register("number", right=lambda thing: isinstance(thing, int), must_be="a whole number", own="module:number")


def test_what_another_package_offers_is_known_everywhere_and_what_is_broken_is_said_and_breaks_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "newcomers.py").write_text(PACKAGE)
    info = tmp_path / "newcomers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: newcomers\nVersion: 1.0\n")
    points = "newdyn = newcomers:NewDyn\nbroken = no_such_module:Thing\nfedavg = newcomers:NewDyn\n"
    (info / "entry_points.txt").write_text(f"[fedloom.methods]\n{points}")
    docs = str(Path(__file__).resolve().parents[1] / "docs")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{SCRIPT}"
    done = subprocess.run([sys.executable, "-c", code, docs], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr


def test_a_name_that_is_taken_is_refused_until_it_is_given_back() -> None:
    register = numbers()
    register.register("one", 1)
    with pytest.raises(ConfigError, match="there is a number 'one' already"):
        register.register("one", 2)
    register.remove("one")
    assert register.register("one", 2) == register["one"] == 2


def test_things_are_found_by_name_or_path_and_must_be_of_the_kind() -> None:
    register = numbers()
    register.register("seven", 7)
    assert register.find("seven") == 7
    assert register.find("sys:maxsize") == sys.maxsize
    assert list(register) == ["seven"]
    for name, what in (
        (
            "sevn",
            "there is no number 'sevn'; did you mean 'seven'? Or choose one of seven, or your own as module:number",
        ),
        ("x", "there is no number 'x'; choose one of seven, or your own as module:number"),
        (
            "seven:lr=0.1,batch=2",
            "there is no number 'seven:lr=0.1,batch=2'; name it 'seven' alone, and give its settings beside it "
            "(--set number.lr=0.1)",
        ),
        ("sys:path", "'sys:path' is no number: it must be a whole number"),
        ("sys:nothing", "the number 'sys:nothing' cannot be imported: module 'sys' has no attribute 'nothing'"),
    ):
        with pytest.raises(ConfigError) as refused:
            register.find(name)
        assert str(refused.value) == what


def test_the_register_is_light() -> None:
    heavy = "print([name for name in ('torch', 'numpy') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"import fedloom.register, fedloom, sys; {heavy}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[]\n", done.stderr
