"""The server and its nodes: the same bits as the simulator, whatever goes wrong on the way."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from local_grid import LocalGrid, fleet

from fedloom.deploy import Terms, serve
from fedloom.engine.run import Run
from fedloom.experiment import Experiment

EXPERIMENT = """
rounds = 3
seed = 4
[data]
name = "digits"
clients = 3
partition = "dirichlet"
alpha = 0.5
[model]
name = "linear"
[method]
name = "{method}"
{options}
[evaluation]
every = {every}
[execution]
stack = 1
executor = "serial"
"""


def folder_with(
    tmp_path: Path, method: str = "fedavg", options: str = "lr = 0.1\nbatch = 16", every: int = 0, more: str = ""
) -> Path:
    folder = tmp_path / "app"
    folder.mkdir(exist_ok=True)
    text = EXPERIMENT.format(method=method, options=options, every=every) + more
    (folder / "experiment.toml").write_text(text)
    return folder


def simulated(folder: Path) -> Run:
    return Experiment.load(folder / "experiment.toml").run()


def deployed(folder: Path, grid: LocalGrid, name: str = "run", **terms: Any) -> Run:
    chosen = {"nodes": 3, "wait": 1.0, "deadline": 1.0, **terms}
    return serve(grid, Experiment.load(folder / "experiment.toml"), Terms(out=str(folder / name), **chosen))


METHODS = {
    "fedavg": "lr = 0.1\nbatch = 16",
    "scaffold": "lr = 0.05\nbatch = 16",
    "fedmeta-maml": "",
    "admm": "",
    "per-fedavg": "",
    "local": "lr = 0.1",
}


@pytest.mark.parametrize("method", METHODS)
def test_a_fleet_ends_in_the_same_bits_as_the_simulator(tmp_path: Path, method: str) -> None:
    folder = folder_with(tmp_path, method, METHODS[method], every=1)
    run, expected = deployed(folder, fleet(folder, 3)), simulated(folder)
    assert run.summary["theta_sha256"] == expected.summary["theta_sha256"]
    assert run.summary["metrics"] == pytest.approx(expected.summary["metrics"])
    assert set(run.summary) == set(expected.summary)
    same = ("round", "bytes_up", "bytes_down", "gradient_evaluations", "accepted")
    for ours, theirs in zip(run.history, expected.history, strict=True):
        assert {key: ours.get(key) for key in same} == {key: theirs.get(key) for key in same}
        for metric, values in theirs["evaluation"].items():  # the simulator adapts clients in a stack to judge them
            assert ours["evaluation"][metric] == pytest.approx(values, rel=1e-6)


def test_a_lossy_channel_sends_what_it_counts_and_ends_in_the_same_bits(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "scaffold", more='[[channel]]\nname = "quantise"\nbits = 4\n')
    run, expected = deployed(folder, fleet(folder, 3)), simulated(folder)
    assert run.summary["theta_sha256"] == expected.summary["theta_sha256"]
    assert run.summary["bytes_up"] == expected.summary["bytes_up"]


def test_the_server_knows_sizes_and_no_rows(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    run = deployed(folder, fleet(folder, 3))
    data = json.loads((folder / "run" / "data.json").read_text())
    everything = Experiment.load(folder / "experiment.toml").data()
    assert data["sizes"]["train"] == everything.splits["train"].sizes.tolist()
    assert [len(row) for row in data["counts"]] == [1, 1, 1]
    assert run.summary["executor"] == "flower"


def changed(**parts: Any) -> Any:
    """The reply with some of its parts changed; the reply's tensors are given to functions."""

    def spoil(message: Message, number: int) -> Message:
        tree = decode(message.content)
        if "wire" not in tree:
            return message
        tree |= {key: part(tree.get(key)) for key, part in parts.items()}
        return make_message(message.metadata, content=encode(tree))

    return spoil


def lost(message: Message, number: int) -> None:
    return None


def in_turn(at: int, spoil: Any) -> Any:
    """Only one of the node's replies is spoilt, counted from 1."""
    return lambda message, number: spoil(message, number) if number == at else message


def each(change: Any) -> Any:
    return lambda wire: {key: change(value) for key, value in wire.items()}


FAULTS = {
    "no reply within 1 seconds": lost,
    "the reply is not finite": changed(wire=each(lambda value: value * torch.nan)),
    "'dx' is float32 of shape [1, 649], not float32 of shape [1, 650]": changed(wire=each(lambda value: value[:, 1:])),
    "'dx' is float64 of shape [1, 650], not float32": changed(wire=each(torch.Tensor.double)),
    "'extra' is float32 of shape [1, 2], not missing": changed(wire=lambda wire: wire | {"extra": torch.ones(1, 2)}),
    "no reply to a task of training": changed(wire=lambda wire: 3),
    "does not say how many gradients": changed(evaluations=lambda old: old - 10**9),
    "bytes in 2 arrays; at most": changed(wire=each(lambda value: torch.zeros(1, 10_000_000))),
    "has the records ['nothing']": lambda message, number: make_message(
        message.metadata, content=RecordDict({"nothing": ConfigRecord({"a": 1})})
    ),
    "Flower says: it broke (code 2)": lambda message, number: Message(Error(2, "it broke"), reply_to=message),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_training_goes_on_without_that_reply(tmp_path: Path, fault: str) -> None:
    folder = folder_with(tmp_path, every=0)
    grid = fleet(folder, 3, n1=in_turn(2, FAULTS[fault]))
    run = deployed(folder, grid)
    assert [row.get("accepted") for row in run.history[1:]] == [3, 2, 3]
    (failure,) = run.history[2]["failures"]
    assert failure.startswith("client 1 failed in round 2: ")
    assert fault in failure
    assert run.history[2]["failed"] == 1
    assert run.summary["finished"]


def test_the_memory_of_a_node_whose_reply_was_lost_is_that_of_its_last_accepted_turn(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "scaffold", "lr = 0.05\nbatch = 16", more='[fleet]\nloss = 0.4\n')
    expected = simulated(folder)
    fates = [row["jobs"] if "jobs" in row else row for row in expected.history]
    assert sum(row.get("lost", 0) for row in expected.history) > 0, fates
    plain = folder_with(tmp_path, "scaffold", "lr = 0.05\nbatch = 16")
    spoils = {f"n{i}": by_fate(lost_in(folder, i)) for i in range(3)}
    run = deployed(plain, fleet(plain, 3, **spoils), tries=1)
    assert run.summary["theta_sha256"] == expected.summary["theta_sha256"]
