"""``fedloom compare``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Call = Callable[..., Result]
Summary = Callable[[Path | str], dict[str, Any]]
SMALL = ("--data", "diabetes", "--clients", 5, "--rounds", 2)


def stamps(folder: str) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(Path(folder).rglob("summary.json"))}


def test_a_comparison_has_a_run_for_each_method_and_seed_a_table_and_a_page(call: Call) -> None:
    result = call("compare", "fedavg", "local", *SMALL, "--repeats", 2, "--seed", 5, "--target", 1.0, "--out", "c")
    assert [str(path.parent.relative_to("c")) for path in sorted(Path("c").rglob("summary.json"))] == [
        "fedavg/seed-5",
        "fedavg/seed-6",
        "local/seed-5",
        "local/seed-6",
    ]
    assert "±" in result.output
    assert "report: c/report.html" in result.output
    record = json.loads(Path("c/compare.json").read_text())
    assert [row["label"] for row in record["table"]] == ["fedavg", "local"]
    assert record["command"][:4] == ["fedloom", "compare", "fedavg", "local"]
    assert record["seeds"] == [5, 6]
    assert "fedloom compare fedavg local" in Path("c/report.html").read_text()


def test_a_run_of_a_comparison_is_the_same_as_the_run_alone(call: Call, summary: Summary) -> None:
    call("compare", "central", "fedavg", *SMALL, "--seeds", "3,1", "--out", "c", "--no-report")
    call("run", "--method", "fedavg", *SMALL, "--seed", 1, "--out", "a", "--no-report")
    assert summary("c/fedavg/seed-1")["theta_sha256"] == summary("a")["theta_sha256"]


def test_what_is_finished_is_not_done_again(call: Call) -> None:
    command = ("compare", "fedavg", "local", *SMALL, "--repeats", 2, "--out", "c", "--no-report")
    call(*command)
    shutil.rmtree("c/local/seed-1")
    before = stamps("c")
    result = call(*command)
    after = stamps("c")
    assert result.output.count("done already") == 3
    assert {path: after[path] for path in before} == before
    assert len(after) == 4


def test_without_a_folder_the_same_comparison_finds_its_own_again(call: Call) -> None:
    command = ("compare", "fedavg", *SMALL, "--repeats", 1, "--no-report")
    call(*command)
    assert "done already" in call(*command, "--executor", "serial").output
    call(*command, "--lr", 0.01)
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "compare-fedavg-diabetes",
        "compare-fedavg-diabetes-2",
    ]


def test_other_settings_in_the_same_folder_are_refused_unless_force_begins_anew(call: Call) -> None:
    call("compare", "fedavg", "local", *SMALL, "--repeats", 1, "--out", "c", "--no-report")
    other = ("compare", "fedavg", *SMALL, "--repeats", 1, "--out", "c", "--lr", 0.01, "--no-report")
    assert "--force" in call(*other, code=2).stderr
    call(*other, "--force")
    assert list(stamps("c")) == ["c/fedavg/seed-0/summary.json"]


def test_a_folder_with_something_else_in_it_is_left_alone(call: Call) -> None:
    Path("c").mkdir()
    Path("c/letter.txt").write_text("dear")
    assert "is no comparison" in call("compare", "fedavg", *SMALL, "--out", "c", "--force", code=2).stderr
    assert [path.name for path in Path("c").iterdir()] == ["letter.txt"]


def test_a_flag_goes_to_the_methods_that_know_it(call: Call) -> None:
    call(
        "compare", "fedavg", "fedsgd", *SMALL, "--epochs", 3, "--lr", 0.05, "--repeats", 1, "--out", "c", "--no-report"
    )
    assert "epochs = 3" in Path("c/fedavg/seed-0/config.toml").read_text()
    fedsgd = Path("c/fedsgd/seed-0/config.toml").read_text()
    assert "epochs" not in fedsgd
    assert "lr = 0.05" in fedsgd


def test_a_flag_that_no_method_knows_is_refused(call: Call) -> None:
    result = call("compare", "fedsgd", *SMALL, "--epochs", 3, "--out", "c", code=2)
    assert "--epochs: method.epochs = 3 is no setting of the method 'fedsgd'" in result.stderr
    assert not Path("c").exists()


def test_a_method_may_bring_settings_of_its_own(call: Call) -> None:
    flags = (*SMALL, "--model", "linear", "--repeats", 1, "--out", "c", "--no-report")
    call("compare", "fedavg", "fedavg:epochs=2,model.bias=false", *flags)
    own = Path("c/fedavg-epochs-2-model.bias-false/seed-0/config.toml").read_text()
    assert "epochs = 2" in own
    assert "bias = false" in own
    assert [row["label"] for row in json.loads(Path("c/compare.json").read_text())["table"]] == [
        "fedavg",
        "fedavg:epochs=2,model.bias=false",
    ]


def test_settings_can_come_from_a_file(call: Call) -> None:
    Path("exp.toml").write_text(
        'rounds = 1\nseed = 7\n[data]\nname = "diabetes"\n[method]\nname = "local"\nepochs = 2\n'
    )
    call("compare", "fedavg", "fedsgd", "--config", "exp.toml", "--repeats", 1, "--out", "c", "--no-report")
    assert "epochs = 2" in Path("c/fedavg/seed-7/config.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fedavgg", "locl"), "fedavgg: method.name = \"fedavgg\" is no method; did you mean 'fedavg'?"),
        (("fedavgg", "locl"), "locl: method.name = \"locl\" is no method; did you mean 'local'?"),
        (("fedavg", "fedavg"), "'fedavg' is there twice"),
        (("fedavg:epochs",), "fedavg:key=value"),
        (("fedavg:epoch=2",), "fedavg:epoch=2: method.epoch = 2 is no setting of the method 'fedavg'; did you mean"),
        (("fedavg", "--seeds", "1,x"), "--seeds"),
        (("fedavg", "--seeds", "1,1"), "seed twice"),
        (("fedavg", "--seeds", "1,2", "--repeats", 2), "give one of the two"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_run(call: Call, arguments: tuple[Any, ...], said: str) -> None:
    result = call("compare", *arguments, *SMALL, "--out", "c", code=2)
    assert said in result.stderr
    assert not Path("c").exists()


def test_a_method_that_diverges_does_not_keep_the_others_from_finishing(call: Call) -> None:
    flags = ("--data", "diabetes", "--clients", 5, "--rounds", 20, "--repeats", 1, "--out", "c", "--no-report")
    result = call("compare", "fedavg:lr=1e30", "local", *flags, code=2)
    assert "1 of 2 runs failed" in result.stderr
    assert "fedavg:lr=1e30, seed 0: " in result.stderr
    assert Path("c/local/seed-0/summary.json").exists()
    assert "local" in result.stdout


def test_a_damaged_run_in_the_folder_is_named_with_its_line(call: Call) -> None:
    command = ("compare", "fedavg", *SMALL, "--repeats", 1, "--out", "c", "--no-report")
    call(*command)
    Path("c/fedavg/seed-0/config.toml").write_text("rounds = = 2\n")
    assert "c/fedavg/seed-0/config.toml:1: not valid TOML" in call(*command, code=2).stderr
    Path("file").write_text("")
    assert "file/c" in call(*command[:-3], "--out", "file/c", code=2).stderr


def test_a_sweep_has_a_run_for_each_value(call: Call) -> None:
    flags = (*SMALL, "--repeats", 1, "--sweep", "method.lr=0.1,0.01", "--out", "c", "--no-report")
    call("compare", "fedavg", *flags)
    assert sorted(path.name for path in Path("c").iterdir() if path.is_dir()) == ["fedavg-lr-0.01", "fedavg-lr-0.1"]
    assert "done already" in call("compare", "fedavg", *flags).output
    assert "--sweep lr: write it as" in call("compare", "fedavg", *SMALL, "--sweep", "lr", code=2).stderr
