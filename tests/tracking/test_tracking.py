"""Trackers are told every round once, whatever becomes of the run; and nothing that they do reaches the run."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fedloom
import listening
from fedloom.errors import ConfigError, Untrusted
from fedloom.experiment import Experiment, load_experiment
from fedloom.experiment.essence import alike
from fedloom.experiment.settings import Override
from fedloom.tracking import figures, parse_tracker
from fedloom.trust import doubting
from listening import HEARD, Listening
from problems import make_problem

FILE = """
rounds = 3
[data]
name = "diabetes"
clients = 3
"""


@pytest.fixture(autouse=True)
def _silence() -> None:
    HEARD.clear()


def rounds_heard() -> list[int]:
    return [what[1] for what in HEARD if what[0] == "row"]


def train(rounds: int = 5, **how: Any) -> fedloom.Run:
    return fedloom.train(make_problem(), fedloom.FedAvg(), rounds=rounds, executor="serial", **how)


class Stop(Exception):
    pass


def stop_after(last: int) -> Any:
    def follow(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == last:
            raise Stop

    return follow


def test_the_numbers_of_a_row_have_the_names_of_the_frame() -> None:
    row = {
        "round": 3,
        "bytes_up": 12,
        "evaluation": {"accuracy": {"weighted": 0.5, "mean": 0.4, "pooled": 0.6, "worst_tenth": None}},
        "evaluations": {"target": {"loss": {"weighted": 2.0}}},
        "measures": {"residual": 0.25, "by_column": [1, 2]},
        "failures": [{"client": 3}],
        "jobs": [[0, 1.0]],
    }
    found = figures(row)
    assert found.pop("accuracy.worst_tenth") != found.get("accuracy.worst_tenth")  # NaN
    assert found == {
        "bytes_up": 12.0,
        "accuracy": 0.5,
        "accuracy.pooled": 0.6,
        "target.loss": 2.0,
        "measures.residual": 0.25,
        "failures": 1.0,
    }


def test_a_tracker_hears_every_round_and_the_end_and_the_run_stays_the_same() -> None:
    alone, tracked = train(), train(callbacks=[Listening()])
    assert tracked.summary["theta_sha256"] == alone.summary["theta_sha256"]
    assert rounds_heard() == [0, 1, 2, 3, 4, 5]
    assert HEARD[0] == ("begin", "fedavg", None, {})
    assert HEARD[-1] == ("end", 5, False)


@pytest.mark.parametrize("fails", ["begin", "row 0", "row 3", "end"])
def test_a_tracker_that_fails_is_left_out_in_one_line(fails: str) -> None:
    with pytest.warns(UserWarning, match=f"goes on without it: no line at {fails}$") as said:
        tracked = train(callbacks=[Listening(fails), Listening()])
    assert len(said) == 1
    assert tracked.summary["theta_sha256"] == train().summary["theta_sha256"]
    assert HEARD.count(("row", 5)) == (2 if fails == "end" else 1)
    assert HEARD[-1] == ("end", 5, False)


def test_a_resumed_run_goes_on_without_telling_a_round_twice(tmp_path: Path) -> None:
    out, how = tmp_path / "run", {"checkpoint_every": 2, "callbacks": [Listening()]}
    with pytest.raises(Stop):
        train(6, out=out, progress=stop_after(3), **how)
    assert HEARD[-1] == ("end", None, False)
    done = train(6, out=out, resume=True, **how)
    assert rounds_heard() == [0, 1, 2, 3, 4, 5, 6]  # though round 3 was computed again
    assert ("begin", "fedavg", None, {"id": 7}) in HEARD
    assert HEARD[-1] == ("end", 6, True)
    assert done.summary["theta_sha256"] == train(6).summary["theta_sha256"]


def test_one_who_comes_later_or_had_failed_is_told_what_it_missed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(Stop), pytest.warns(UserWarning, match="row 2"):
        train(4, out=out, progress=stop_after(3), checkpoint_every=1, callbacks=[Listening("row 2")])
    listening.HEARD.clear()
    train(4, out=out, resume=True, callbacks=[Listening()])  # other settings: another tracker
    assert rounds_heard() == [0, 1, 2, 3, 4]


def test_what_was_kept_may_be_damaged(tmp_path: Path) -> None:
    out, how = tmp_path / "run", {"checkpoint_every": 1, "callbacks": [Listening()]}
    with pytest.raises(Stop):
        train(3, out=out, progress=stop_after(2), **how)
    (out / "tracking.json").write_text('{"broken')
    with pytest.warns(UserWarning, match="tracked as another one"):
        train(3, out=out, resume=True, **how)
    assert HEARD.count(("begin", "fedavg", None, {})) == 2
    train(3, out=out, force=True, **how)
    assert HEARD[-6:] == [("begin", "fedavg", None, {}), *(("row", k) for k in range(4)), ("end", 3, True)]


def test_tasks_in_sequence_are_one_tracked_run(tmp_path: Path) -> None:
    problems = [make_problem(seed=seed) for seed in (0, 1)]
    fedloom.train_tasks(problems, "fedavg", rounds=2, out=tmp_path / "run", callbacks=[Listening()])
    # rounds count on; after each task comes what the model is on all of them
    assert rounds_heard() == [0, 1, 2, 2, 3, 4, 4]
    assert [what for what in HEARD if what[0] != "row"] == [("begin", "fedavg", None, {}), ("end", 4, True)]


def test_a_comparison_is_a_group_and_tracking_is_no_part_of_what_it_is(tmp_path: Path) -> None:
    settings = {"data.name": "diabetes", "data.clients": 3, "rounds": 1, "tracking": [{"name": "listening:Listening"}]}
    fedloom.compare(["fedavg", "fedsgd"], settings=settings, seeds=1, out=tmp_path / "both", report=False)
    assert [what[1:3] for what in HEARD if what[0] == "begin"] == [("fedavg", "both"), ("fedsgd", "both")]
    del settings["tracking"]
    again = fedloom.compare(["fedavg", "fedsgd"], settings=settings, seeds=1, out=tmp_path / "both", report=False)
    assert len(again.runs) == 2
    assert len([what for what in HEARD if what[0] == "begin"]) == 2


def test_a_file_names_trackers_and_they_are_not_what_the_run_is(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(f'{FILE}[[tracking]]\nname = "tensorboard"\ndir = "logs"\n[[tracking]]\nname = "mlflow"\n')
    tracked = Experiment.load(file)
    assert tracked.resolved()["tracking"] == [
        {"name": "tensorboard", "dir": str(tmp_path / "logs")},
        {"name": "mlflow", "experiment": "fedloom"},
    ]
    file.write_text(f'{FILE}[tracking]\nname = "wandb"\nproject = "hospitals"\n')
    assert Experiment.load(file).resolved()["tracking"] == [{"name": "wandb", "project": "hospitals"}]
    file.write_text(FILE)
    assert "tracking" not in Experiment.load(file).resolved()
    assert alike(Experiment.load(file).resolved(), tracked.resolved())


def test_what_cannot_be_is_said_before_any_work(tmp_path: Path) -> None:
    def load(**table: Any) -> Experiment:
        return Experiment.load(None, {"data.name": "diabetes", "tracking": [table]})

    with pytest.raises(ConfigError, match="did you mean 'mlflow'"):
        load(name="mlflw")
    with pytest.raises(ConfigError, match=r"tracking\.0\.url.* is no setting of the tracker 'mlflow'"):
        load(name="mlflow", url="x")
    with pytest.raises(ConfigError, match="has no name"):
        load(uri="x")
    with pytest.raises(ConfigError, match="should be a table"):
        Experiment.load(None, {"tracking": ["tensorboard"]})
    with pytest.raises(ConfigError, match=r"pip install 'fedloom\[not_there\]'"):
        train(callbacks=[Missing()], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@dataclass
class Missing(Listening):
    needs = "not_there"


def test_a_strangers_folder_chooses_no_place_to_write_to() -> None:
    table = [{"name": "mlflow", "uri": "http://elsewhere"}]
    with doubting(Path("theirs"), "it is not signed by you"):
        with pytest.raises(Untrusted, match="http://elsewhere"):
            load_experiment(None, [Override("tracking", table, "")])
        load_experiment(None, [Override("tracking", [{"name": "mlflow"}], "")])


def test_the_words_of_the_command_line() -> None:
    assert parse_tracker("mlflow:http://host:5000") == {"name": "mlflow", "uri": "http://host:5000"}
    assert parse_tracker("tensorboard:logs") == {"name": "tensorboard", "dir": "logs"}
    assert parse_tracker("wandb") == {"name": "wandb"}
    assert parse_tracker("listening:Listening") == {"name": "listening:Listening"}


def scalars(path: Path, tag: str) -> tuple[list[int], list[float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(path), size_guidance={"scalars": 0})
    found.Reload()
    events = found.Scalars(tag)
    return [event.step for event in events], [event.value for event in events]


def test_tensorboard_reads_what_the_history_has(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = train(4, out=out, callbacks=["tensorboard"])
    steps, values = scalars(out / "tensorboard", "accuracy")
    assert steps == [0, 1, 2, 3, 4]
    assert values == pytest.approx([row["evaluation"]["accuracy"]["weighted"] for row in run.history])
    assert scalars(out / "tensorboard", "accuracy/worst_tenth")[0] == steps
    assert scalars(out / "tensorboard", "bytes_up")[1] == [row["bytes_up"] for row in run.history]
    assert (out / "tensorboard" / "report.html").is_file()
    train(2, out=out, callbacks=["tensorboard"], force=True)
    assert scalars(out / "tensorboard", "accuracy")[0] == [0, 1, 2]


def test_tensorboard_gives_each_run_a_folder_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        train(1, callbacks=[fedloom.TensorBoard(str(tmp_path / "logs"))])
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["fedavg", "fedavg-2"]


KILLED = """
import os, signal, sys
import fedloom

data = fedloom.federate("diabetes", clients=3)
problem = fedloom.Problem(data, fedloom.build_model("linear", data))

def follow(row, rounds):
    if row["round"] == 5:
        os.kill(os.getpid(), signal.SIGKILL)

how = {"checkpoint_every": 2, "callbacks": ["tensorboard"], "progress": follow}
fedloom.train(problem, "fedavg", rounds=8, executor="serial", out=sys.argv[1], **how)
"""


def test_after_a_kill_tensorboard_has_every_step_once(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert subprocess.run([sys.executable, "-c", KILLED, out], check=False).returncode == -signal.SIGKILL
    data = fedloom.federate("diabetes", clients=3)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    fedloom.train(problem, "fedavg", rounds=8, executor="serial", out=out, resume=True, callbacks=["tensorboard"])
    assert sorted(scalars(out / "tensorboard", "wall_seconds")[0]) == list(range(9))  # two files of one second


def test_mlflow_has_metrics_settings_and_artifacts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri, out = (tmp_path / "store").as_uri(), tmp_path / "run"
    how = {"checkpoint_every": 2, "callbacks": [f"mlflow:{uri}"]}
    with pytest.raises(Stop):
        train(5, out=out, progress=stop_after(3), **how)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("fedloom").experiment_id
    assert [one.info.status for one in client.search_runs([experiment])] == ["KILLED"]
    run = train(5, out=out, resume=True, **how)
    (one,) = client.search_runs([experiment])
    assert one.info.status == "FINISHED"
    assert one.data.params["method.lr"] == str(fedloom.FedAvg().lr)
    told = client.get_metric_history(one.info.run_id, "accuracy")
    assert [metric.step for metric in told] == [0, 1, 2, 3, 4, 5]
    assert [metric.value for metric in told] == [row["evaluation"]["accuracy"]["weighted"] for row in run.history]
    assert {file.path for file in client.list_artifacts(one.info.run_id)} == {"report.html", "summary.json"}


def wandb_steps(folder: Path, name: str) -> list[int]:
    """The steps of a metric in the files of an offline run: records of Weights & Biases in LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        content, at, whole = file.read_bytes(), 7, b""
        while at + 7 <= len(content):
            if 2**15 - at % 2**15 < 7:  # a block ends in padding
                at += 2**15 - at % 2**15
                continue
            length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
            whole += content[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4):
                record, whole = Record.FromString(whole), b""
                items = {item.key or "/".join(item.nested_key) for item in record.history.item}
                found += [record.history.step.num] if name in items else []
    return found


def test_wandb_offline_has_every_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    out, how = tmp_path / "run", {"checkpoint_every": 2, "callbacks": ["wandb"]}
    with pytest.raises(Stop):
        train(4, out=out, progress=stop_after(3), **how)
    train(4, out=out, resume=True, **how)
    assert wandb_steps(out, "accuracy") == [0, 1, 2, 3, 4]
    ids = {path.name.rpartition("-")[2] for path in out.glob("wandb/offline-run-*")}
    assert len(ids) == 1
    assert list(out.glob("wandb/offline-run-*/files/report.html"))


def test_without_a_login_the_run_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    with pytest.warns(UserWarning, match="wandb failed.*there is no login"):
        assert train(1, callbacks=["wandb"]).summary["finished"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(1)
