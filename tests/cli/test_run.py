"""``fedloom run`` and ``fedloom resume``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Call = Callable[..., Result]
Summary = Callable[[Path | str], dict[str, Any]]
SMALL = ("--data", "diabetes", "--clients", 5, "--rounds", 3)


def test_a_run_is_a_folder_with_a_report_and_ends_with_a_table(call: Call, summary: Summary) -> None:
    result = call("run", *SMALL, "--out", "a")
    assert "round 0/3  rmse" in result.output
    assert "Weighted mean" in result.output
    assert "report: a/report.html" in result.output
    assert {path.name for path in Path("a").iterdir()} >= {
        "config.toml",
        "history.jsonl",
        "summary.json",
        "report.html",
    }
    assert summary("a")["rounds"] == 3


def test_a_run_says_when_it_reached_its_target_and_its_table_too(
    call: Call, summary: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = (*SMALL[:4], "--rounds", 60, "--delay", "uniform:10:100", "--schedule", "async", "--concurrency", 3)
    result = call("run", *flags, "--until", "rmse=0.9", "--out", "a")
    assert "5 clients (3 at a time)" in result.output
    reached = summary("a")["target"]["reached"]
    assert 0 < reached["round"] == summary("a")["rounds"] < 60
    said = re.search(r"stopped: target reached, rmse 0.9, at ([\d.]+) (s|min) simulated, round (\d+)", result.output)
    assert said is not None
    assert int(said[3]) == reached["round"]
    shown = reached["simulated_seconds"] / (60 if said[2] == "min" else 1)
    assert float(said[1]) == pytest.approx(shown, abs=0.06)
    monkeypatch.setenv("COLUMNS", "200")  # a narrow table leaves columns out
    assert "Seconds to" in call("report", "a").output
    assert "To RMSE ≤ 0.9" in Path("a/report.html").read_text()


def test_a_run_that_ends_by_the_limit_of_time_says_so_and_that_its_target_was_missed(call: Call) -> None:
    flags = (*SMALL[:4], "--rounds", 60, "--delay", 10, "--seconds", 35, "--until", "rmse=0")
    output = call("run", *flags, "--out", "a", "--no-report").output
    assert "stopped: limit of simulated time, at 40.0 s simulated, round 4" in output
    assert "the target rmse = 0 was not reached: the run ended by its limit of seconds" in output
    assert "stopped" not in call("run", *SMALL, "--out", "b", "--no-report").output


def test_a_run_that_converged_says_so(call: Call) -> None:
    flags = ("--method", "admm", "--data", "diabetes", "--clients", 5, "--rounds", 200, "--dtype", "float64")
    output = call("run", *flags, "--set", "method.stop=0.01", "--out", "a", "--no-report").output
    assert "stopped: converged at round" in output


def test_without_a_folder_each_run_gets_a_new_one(call: Call) -> None:
    for _ in range(2):
        call("run", *SMALL, "--seed", 4, "--no-report")
    assert sorted(path.name for path in Path("runs").iterdir()) == ["fedavg-diabetes-4", "fedavg-diabetes-4-2"]
    assert not Path("runs/fedavg-diabetes-4/report.html").exists()


def test_flags_win_over_the_file_and_set_wins_over_flags(call: Call) -> None:
    Path("exp.toml").write_text("rounds = 1\n[data]\nname = 'diabetes'\n[method]\nlr = 0.5\nepochs = 2\nbatch = 8\n")
    call("run", "exp.toml", "--epochs", 3, "--batch", "none", "--set", "method.batch=16", "--out", "a", "--no-report")
    config = Path("a/config.toml").read_text()
    assert "lr = 0.5" in config
    assert "epochs = 3" in config
    assert "batch = 16" in config


def test_the_settings_that_a_run_wrote_give_the_same_bits_again(call: Call, summary: Summary) -> None:
    flags = (
        *("--data", "digits", "--clients", 12, "--partition", "dirichlet", "--partition", "quantity", "--alpha", 0.3),
        *("--model", "mlp", "--hidden", "20,10", "--rounds", 3, "--seed", 5, "--lr", 0.2, "--batch", "none"),
        *("--steps", 2, "--fraction", 0.5, "--selection", "size", "--fleet", "cross-device", "--deadline", 60),
        *("--dropout", 0.1, "--loss-rate", 0.1, "--executor", "serial", "--eval-every", 2, "--metric", "f1"),
        *("--metric", "accuracy", "--target-clients", 0.25, "--test", 0.3, "--support", 0.4, "--dtype", "float64"),
        *("--checkpoint-every", 2, "--on-error", "drop", "--quantise", 6, "--loss", "cross-entropy", "--stack", 3),
    )
    call("run", *flags, "--out", "a", "--no-report")
    call("run", "a/config.toml", "--out", "b", "--no-report")
    assert summary("a")["theta_sha256"] == summary("b")["theta_sha256"]
    assert Path("a/config.toml").read_text() == Path("b/config.toml").read_text()
    assert set(summary("a")["metrics"]) == {"f1", "accuracy", "loss"}


def test_flags_say_how_rows_arrive(call: Call, summary: Summary) -> None:
    flags = (*SMALL, "--set", "fleet.delay_up=10", "--no-report", "--quiet")
    call("run", *flags, "--stream-start", "uniform:0.1:0.3", "--stream-rate", 0.5, "--out", "a")
    call("run", "a/config.toml", "--out", "b", "--no-report")
    assert summary("a")["theta_sha256"] == summary("b")["theta_sha256"]
    rows = [json.loads(line) for line in Path("a/history.jsonl").read_text().splitlines()]
    assert [row["arrived"] - rows[0]["arrived"] for row in rows] == [0, 25, 50, 75]  # 5 clients, 10 s, half a row each
    said = call("run", *flags, "--stream-growth", 0.1, "--stream-duration", 9, "--out", "c", code=2).output
    assert "--stream-duration: stream.duration" in said
    assert "cannot be beside stream.growth: keep one of rate, growth, duration" in " ".join(said.split())
    said = call("run", *flags, "--stream-timestamps", "--out", "c", code=2).output
    assert "have no times" in " ".join(said.split())


def test_the_executor_does_not_change_the_bits(call: Call, summary: Summary) -> None:
    flags = (*SMALL, "--stack", 2, "--no-report")
    call("run", *flags, "--out", "a", "--executor", "serial")
    call("run", *flags, "--out", "b", "--executor", "processes", "--workers", 2)
    assert summary("a")["theta_sha256"] == summary("b")["theta_sha256"]
    assert summary("b")["executor"] == "processes"


def test_classes_per_client_and_cyclic_reach_the_partition(call: Call) -> None:
    flags = ("--partition", "classes", "--classes-per-client", 1, "--cyclic", "--clients", 10, "--rounds", 1)
    call("run", *flags, "--out", "a", "--no-report")
    counts = json.loads(Path("a/data.json").read_text())["counts"]
    assert all(counts[client][client] == sum(counts[client]) > 0 for client in range(10))


def test_roles_keep_a_fifth_of_the_clients_from_training_and_judge_them_too(call: Call) -> None:
    call("run", "--data", "digits", "--clients", 10, "--roles", "--rounds", 1, "--out", "a", "--no-report")
    assert json.loads(Path("a/data.json").read_text())["roles"].count("target") == 2
    last = json.loads(Path("a/history.jsonl").read_text().splitlines()[-1])
    assert last["evaluations"]["target"]["accuracy"]["clients"] == 2


def test_a_file_of_the_user_is_data_too(call: Call, summary: Summary) -> None:
    rows = "".join(f"{k / 9},{k % 7},{k % 2},{'abc'[k % 3]}\n" for k in range(60))
    Path("table.csv").write_text("first,second,label,site\n" + rows)
    columns = ("--set", "data.label_column=label", "--set", "data.client_column=site")
    call("run", "--data", "table.csv", *columns, "--rounds", 1, "--out", "a", "--no-report")
    assert summary("a")["data"] == "table"


def test_quiet_says_the_result_and_nothing_else(call: Call) -> None:
    result = call("run", *SMALL, "--out", "a", "--quiet")
    assert result.output.startswith("fedavg: rmse ")
    assert result.output.endswith(" after round 3, a\n")
    assert result.output.count("\n") == 1


def test_a_run_that_evaluates_nothing_ends_in_words_too(call: Call) -> None:
    flags = (*SMALL, "--set", "evaluation=[]", "--no-report")
    assert call("run", *flags, "--out", "a", "--quiet").output == "fedavg: not evaluated after round 3, a\n"
    assert "fedavg, seed 0: not evaluated in " in call("compare", "fedavg", *flags, "--repeats", 1, "--out", "c").output


def test_a_folder_that_holds_a_run_is_kept_unless_force_says_otherwise(call: Call, summary: Summary) -> None:
    call("run", *SMALL, "--out", "a", "--no-report")
    assert "fedloom resume a" in call("run", *SMALL, "--out", "a", code=2).stderr
    call("run", *SMALL, "--out", "a", "--rounds", 2, "--force", "--no-report")
    assert summary("a")["rounds"] == 2


def test_a_finished_run_can_be_resumed_and_stays_what_it_is(call: Call, summary: Summary) -> None:
    call("run", *SMALL, "--out", "a", "--no-report")
    before = summary("a")["theta_sha256"]
    call("resume", "a", "--no-report")
    assert summary("a")["theta_sha256"] == before
    assert "There is no folder b" in call("resume", "b", code=2).stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--method", "fedagv"), "--method: method.name = \"fedagv\" is no method; did you mean 'fedavg'?"),
        (("--data", "digit"), "--data: data.name = \"digit\" is no data set; did you mean 'digits'?"),
        (("--set", "method.lrr=1"), "--set method.lrr=1: method.lrr = 1 is no setting of the method 'fedavg'; did you"),
        (("--batch", "some"), '--batch: method.batch = "some" should be a whole number of at least 1 or none'),
        (("--clients", 5, "--per-round", 6), "--per-round: selection.per_round = 6 cannot be: there are 5 clients"),
        (("--per-round", 6, "--fraction", 0.5), "--fraction: selection.fraction = 0.5 cannot be beside"),
        (("--partition", "classes", "--classes-per-client", 11), "--classes-per-client: data.classes_per_client = 11"),
        (("--classes-per-client", 2), "--classes-per-client: data.classes_per_client = 2 is an option of partition"),
        (
            ("--method", "per-fedavg", "--alpha", 0.1),
            "not chosen; the method's is method.alpha, on the command line --set",
        ),
        (
            ("--hidden", "a,b"),
            '--hidden: model.hidden = ["a", "b"] should be a list of values, each a whole number of at least 1',
        ),
        (("--quantise", 99), "--quantise: channel.0.bits = 99 should be a whole number from 1 to 16"),
    ],
)
def test_a_flag_that_cannot_be_is_refused_by_its_name(call: Call, flags: tuple[Any, ...], said: str) -> None:
    result = call("run", *flags, "--out", "a", code=2)
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path("a").exists()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("run", "--method", "admm-fedmeta", "--rho", 1), "--set method.rho=VALUE"),
        (("run", "--lambda", 1), "--set method.lambda_=VALUE"),
        (("compare", "fedavg", "fedprox", "--mu", 1), "--set method.mu=VALUE"),
        (("run", "--method", "fedavg", "--rouns", 1), "--rounds"),
        (("report", "--mu", 1), ""),
    ],
)
def test_a_hyper_parameter_that_is_no_option_is_told_how_it_is_given(
    call: Call, words: tuple[Any, ...], meant: str
) -> None:
    said = call(*words, code=2).stderr
    assert meant in said
    assert ("--set" in said) == ("--set" in meant)


def test_a_broken_file_is_refused_with_its_line(call: Call) -> None:
    Path("exp.toml").write_text("rounds = 3\n[method]\nlr = -1\n")
    assert "error: exp.toml:3: method.lr = -1 should be a number above 0" in call("run", "exp.toml", code=2).stderr


def test_debugging_shows_where_an_error_came_from(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_DEBUG", "1")
    assert "Traceback" in call("run", "--method", "nothing", code=2).stderr


def test_a_client_that_diverges_stops_the_run_in_words(call: Call) -> None:
    result = call("run", *SMALL, "--lr", 1e30, "--rounds", 20, "--out", "a", code=2)
    assert "is not finite" in result.stderr
    assert "Traceback" not in result.stderr
