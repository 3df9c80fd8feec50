"""What would go wrong without a word is said in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import fedloom
from fedloom.errors import ConfigError

Call = Callable[..., Result]
SMALL = ("--data", "digits", "--clients", 4, "--model", "linear", "--no-report")


def notes(result: Result) -> list[str]:
    return [line for line in result.output.splitlines() if line.startswith("note: ")]


def test_a_run_whose_loss_explodes(call: Call) -> None:
    (said,) = notes(call("run", *SMALL, "--lr", 1e6, "--rounds", 3))
    assert said.startswith("note: the run is diverging: the loss rose from 2.3")
    assert said.endswith("try smaller step sizes")
    assert not notes(call("run", *SMALL, "--rounds", 3))


def test_a_stream_that_brought_a_tenth_of_its_rows(call: Call) -> None:
    slow = ("--stream-start", 0.05, "--stream-growth", 0.01, "--delay", 1, "--rounds", 5)
    (said,) = notes(call("run", *SMALL, *slow))
    assert "the stream had brought 141 of 1,437 training rows (10%) when the run ended, after 5 simulated" in said
    assert not notes(call("run", *SMALL, "--stream-start", 0.5, "--stream-growth", 0.5, "--delay", 1, "--rounds", 3))


@pytest.mark.parametrize("ask", [("--device", "cuda"), ("--set", "execution.device=mps")])
def test_another_device(ask: tuple[str, str], call: Call) -> None:
    said = " ".join(call("run", *SMALL, *ask, code=2).stderr.replace("│", " ").split())
    assert "device" in said
    assert "fedloom computes on the CPU only, so far" in said
    call("run", *SMALL, "--set", "execution.device=cpu", "--rounds", 1)


def test_another_device_in_python() -> None:
    data = fedloom.federate("digits", clients=3)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    with pytest.raises(ConfigError, match="train has no argument 'device'; fedloom computes on the CPU only"):
        fedloom.train(problem, "fedavg", device="cuda")  # type: ignore[call-arg]


OWN = '''
from dataclasses import dataclass
import fedloom
from fedloom.conformance import Declaration, Exactly, Limit, quadratics

@dataclass(frozen=True)
class Mine(fedloom.FedSGD):
    """Another name for it."""

def claims():
    limit = lambda known, method: known.optimum
    return Declaration(
        claims=(Limit("it finds the optimum", quadratics, limit, {"lr": 0.5}, rounds=120),),
        excused={name: "not looked at" for name in ("sampled", "lost", "late", "quantised")},
    )

declared = claims()
def number(): return 3
def needs(x): return x
text = "claims"
'''


def test_a_method_of_ones_own_is_proved_from_the_command_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own_proof.py").write_text(OWN)
    monkeypatch.syspath_prepend(Path.cwd())
    for declaration in ("own_proof:declared", "own_proof:claims"):
        told = call(
            *("check", "own_proof:Mine", "--declaration", declaration, "--only", "declared", "--only", "known-answer")
        ).output
        assert "passed  own_proof:Mine  known-answer: it finds the optimum" in told
        assert "2 checks, all passed" in told
    bare = call("check", "own_proof:Mine", "--only", "declared", code=1).output
    assert "--declaration module:NAME" in bare


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("own_proof2:Mine", "own_proof2:nothing"), "cannot be imported: module 'own_proof2' has no attribute"),
        (("own_proof2:Mine", "nowhere:declared"), "cannot be imported: No module named 'nowhere'"),
        (("own_proof2:Mine", "own_proof2:number"), "gives 'int' and no fedloom.conformance.Declaration"),
        (("own_proof2:Mine", "own_proof2:needs"), "called without arguments it fails, TypeError"),
        (("own_proof2:Mine", "own_proof2:text"), "is no declaration: it must be a fedloom.conformance.Declaration"),
        (("own_proof2:Mine", "declared"), "such as mine:declared"),
        (("own_proof2:Mine", "broken:declared"), "in {here}/broken.py, line 2"),
        (("own_proof2:Mine", "odd:declared"), "ZeroDivisionError: division by zero in {here}/odd.py, line 1"),
        ((None, "own_proof2:declared"), "name that one"),
    ],
)
def test_a_declaration_that_is_none_is_refused_in_one_line(
    arguments: tuple[str | None, str], said: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("own_proof2.py").write_text(OWN)
    Path("broken.py").write_text("\ndef (:\n")
    Path("odd.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(Path.cwd())
    method, declaration = arguments
    told = call("check", *([method] if method else []), "--declaration", declaration, code=2).stderr
    assert said.format(here=Path.cwd()) in told
    assert len(told.strip().splitlines()) == 1
