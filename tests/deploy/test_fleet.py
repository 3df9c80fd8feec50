"""The server and its nodes: the same bits as the simulator, whatever goes wrong on the way."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.app.message import make_message

sys.path.insert(0, str(Path(__file__).parent))
from local_grid import LocalGrid, Spoil, fleet, get_all_nested_objects

import kinds
from fedloom.deploy import Terms, serve
from fedloom.deploy.codec import decode, encode
from fedloom.deploy.executor import Fleet as FlowerFleet
from fedloom.deploy.link import Link
from fedloom.deploy.memory import FileKeeper
from fedloom.deploy.roster import Roster
from fedloom.engine.fleet import Fleet as Simulated
from fedloom.engine.run import Run
from fedloom.errors import ConfigError, RunError
from fedloom.experiment import Experiment
from fedloom.federation.randomness import Draw
from fedloom.storage import checkpoint
from fedloom.storage.store import MemoryStore

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
loss = "{loss}"
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
    folder.mkdir(exist_ok=True, parents=True)
    loss = "ovr-hinge" if method in ("cocoa-plus", "mocha") else "auto"
    text = EXPERIMENT.format(method=method, options=options, every=every, loss=loss) + more
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
    "fedper": 'lr = 0.1\nlayers = "*.bias"',
    "mocha": "inner = 2",
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


def test_dual_variables_of_single_rows_are_the_same_on_a_fleet(tmp_path: Path) -> None:
    """A node has its own rows alone, in other places: w, both objectives and their gap have the same bits."""
    folder = folder_with(tmp_path, "cocoa-plus", every=1, options="")
    run, expected = deployed(folder, fleet(folder, 3)), simulated(folder)
    assert run.summary["theta_sha256"] == expected.summary["theta_sha256"]
    assert [row["measures"] for row in run.history] == [row["measures"] for row in expected.history]


@pytest.mark.parametrize("method", ["fedbn", "fedadam"])
def test_a_fleet_moves_running_statistics_as_the_simulator_does(tmp_path: Path, method: str) -> None:
    folder = folder_with(tmp_path, method, "lr = 0.1\nbatch = 64", every=0)
    file = folder / "experiment.toml"
    file.write_text(file.read_text().replace('name = "linear"', 'name = "resnet8"\nwidth = 2'))
    run, expected = deployed(folder, fleet(folder, 3)), simulated(folder)
    assert run.summary["theta_sha256"] == expected.summary["theta_sha256"]
    assert run.summary["metrics"] == pytest.approx(expected.summary["metrics"])
    assert run.summary["bytes_up"] == expected.summary["bytes_up"]


class Overheard(LocalGrid):
    """Keeps the bytes of all that nodes are sent and say."""

    def __init__(self, grid: LocalGrid) -> None:
        super().__init__(grid.nodes.values())
        self.down: dict[int, bytes] = {}
        self.up: dict[int, bytes] = {}

    @property
    def heard(self) -> bytes:
        return b"".join([*self.down.values(), *self.up.values()])

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        asked = list(messages)
        numbers = list(super().push_messages(asked))
        replies = [self.replies[number] for number in numbers if number in self.replies]
        for way, told in ((self.down, asked), (self.up, replies)):
            for message in told:
                if message.has_content():
                    parts = get_all_nested_objects(message.content).values()
                    meta = message.metadata
                    node = meta.dst_node_id if way is self.down else meta.src_node_id
                    way[node] = way.get(node, b"") + b"".join(part.deflate() for part in parts)
        return numbers


def test_no_personal_byte_is_in_any_message_of_a_fleet(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "fedper", METHODS["fedper"], every=1)
    grid = Overheard(fleet(folder, 3))
    deployed(folder, grid)
    experiment = Experiment.load(folder / "experiment.toml")
    experiment.run(tmp_path / "here")
    found = checkpoint.load(tmp_path / "here" / checkpoint.NEWEST)
    with MemoryStore.restore(tmp_path / "here", found.groups["memory"]) as store:
        memories = [store.get(client) or {} for client in range(3)]
    first = experiment.prepared().setting.problem.model.init(Draw(4).key("model"))
    assert first[:10].numpy().tobytes() in grid.heard  # the shared weights travel, and they are found
    for memory in memories:
        own = memory["own x"].numpy()
        assert len(own) == 10
        assert not [number for number in own if number.tobytes() in grid.heard and abs(number) > 1e-3]


def test_no_node_is_sent_the_model_of_another_client(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "fedu", "lr = 0.1\neta = 0.2", every=1)
    grid = Overheard(fleet(folder, 3))
    run, expected = deployed(folder, grid), simulated(folder)
    assert run.summary["metrics"] == expected.summary["metrics"]
    assert len(grid.down) == 3
    for heard in grid.down.values():
        assert run.state["x"].numpy().tobytes() in heard  # what all are shown is found …
        assert not [k for k in range(3) if run.state["u"][k].numpy().tobytes() in heard]  # … and nobody's own model


@pytest.mark.parametrize("parts", ["own", "best"])
def test_a_published_part_reaches_the_server_and_other_nodes_only_if_they_use_it(tmp_path: Path, parts: str) -> None:
    folder = folder_with(tmp_path, "fedper", f"{METHODS['fedper']}\npublish = true", every=1)
    with (folder / "experiment.toml").open("a") as file:
        file.write(f'[[evaluation]]\nname = "others"\nmodel = "personal"\nparts = "{parts}"\n')
    text = (folder / "experiment.toml").read_text()
    (folder / "experiment.toml").write_text(text.replace("[evaluation]", "[[evaluation]]", 1))
    grid = Overheard(fleet(folder, 3))
    run, expected = deployed(folder, grid), simulated(folder)
    assert run.summary["theta_sha256"] == expected.summary["theta_sha256"]
    assert torch.equal(run.state["published"], expected.state["published"])
    others = [row["evaluations"]["others"]["accuracy"] for row in (run.history[-1], expected.history[-1])]
    assert others[0] == pytest.approx(others[1])
    for client, part in enumerate(run.state["published"]):
        assert [part.numpy().tobytes() in up for up in grid.up.values()].count(True) == 1, client
        assert [part.numpy().tobytes() in down for down in grid.down.values()] == [parts == "best"] * 3


@pytest.mark.parametrize("kind", kinds.METHODS)
def test_a_wrapper_and_nodes_without_a_server_end_in_the_same_bits_on_a_fleet(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    path = kinds.written(folder, kind, "experiment.toml")
    roster = Roster(Link(fleet(folder, 3)), folder / "run")
    roster.gather(3, 1.0)
    terms = Terms(out=str(folder / "run"), nodes=3, wait=1.0, deadline=1.0)
    run = kinds.run(path, kind, FlowerFleet(roster, terms), out=folder / "run", data=roster.data())
    expected = kinds.run(path, kind, "serial")
    assert run.summary["theta_sha256"] == expected.summary["theta_sha256"]
    assert run.summary["metrics"] == pytest.approx(expected.summary["metrics"])
    assert kinds.counted(run.state) == kinds.counted(expected.state)


def test_whoever_follows_the_log_sees_every_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = folder_with(tmp_path)
    with caplog.at_level(logging.INFO, "flwr"):
        run = deployed(folder, fleet(folder, 3))
    found = [text for text in caplog.messages if text.startswith("round ")]
    assert found[1:3] == ["round 1/3, 3 of 3 replies", "round 2/3, 3 of 3 replies"]
    accuracy = run.summary["metrics"]["accuracy"]
    assert found[3].startswith(f"round 3/3, 3 of 3 replies, accuracy {accuracy:.4g}")


def test_a_lossy_channel_sends_what_it_counts_and_ends_in_the_same_bits(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "scaffold", more='[[channel]]\nname = "quantise"\nbits = 4\n')
    run, expected = deployed(folder, fleet(folder, 3)), simulated(folder)
    assert run.summary["theta_sha256"] == expected.summary["theta_sha256"]
    assert run.summary["bytes_up"] == expected.summary["bytes_up"]


@pytest.mark.parametrize("step", ["Coarse", "HalfDown", "Clip", "Masked"])
def test_a_step_that_remembers_acts_down_or_on_the_sum_ends_in_the_same_bits(tmp_path: Path, step: str) -> None:
    folder = folder_with(tmp_path, more=f'[[channel]]\nname = "odd_transforms:{step}"\n')
    run, expected = deployed(folder, fleet(folder, 3)), simulated(folder)
    same = ("theta_sha256", "bytes_up", "bytes_down")
    assert {key: run.summary[key] for key in same} == {key: expected.summary[key] for key in same}
    assert [row.get("channel") for row in run.history] == [row.get("channel") for row in expected.history]


@pytest.mark.parametrize("spoiled", [False, True])
def test_replies_that_wait_on_the_disk_end_in_the_same_bits(tmp_path: Path, spoiled: bool) -> None:
    folder, spoils = folder_with(tmp_path, "scaffold", METHODS["scaffold"]), {}
    if spoiled:
        spoils = {"n0": in_turn(2, changed(wire=each(lambda value: value * torch.nan)))}
    on_disk = deployed(folder, fleet(folder, 3, **spoils), "a", memory=1e-9)
    assert on_disk.history[2]["accepted"] == (2 if spoiled else 3)
    in_memory = deployed(folder, fleet(folder, 3, **spoils), "b")
    assert on_disk.summary["theta_sha256"] == in_memory.summary["theta_sha256"]
    assert {path.name for path in (folder / "a").iterdir()} == {path.name for path in (folder / "b").iterdir()}


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
    "no reply to a turn": changed(wire=lambda wire: 3),
    "does not say how many gradients": changed(evaluations=lambda old: old - 10**9),
    "'figures/clipped' is float32 of shape [1, 5], not missing": changed(
        figures=lambda old: {"clipped": torch.ones(1, 5)}
    ),
    "bytes in 3 arrays; at most": changed(wire=each(lambda value: torch.zeros(1, 10_000_000))),
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


@pytest.mark.parametrize("method", ["scaffold", "mocha"])
def test_the_memory_of_a_node_whose_reply_was_lost_is_that_of_its_last_accepted_turn(
    tmp_path: Path, method: str
) -> None:
    folder, options = tmp_path / "app", METHODS[method]
    expected = simulated(folder_with(tmp_path, method, options, more="[fleet]\nloss = 0.4\n"))
    assert [row["lost"] for row in expected.history[1:]] == [1, 1, 0]
    clients = np.arange(3)
    fates = [Simulated(loss=0.4).fates(clients, np.zeros(3), Draw(4, t))["lost"] for t in range(3)]

    def by_fate(client: int) -> Spoil:
        return lambda message, number: None if number <= 3 and fates[number - 1][client] else message

    folder_with(tmp_path, method, options)
    grid = fleet(folder, 3, **{f"n{i}": by_fate(i) for i in range(3)})
    run = deployed(folder, grid, deadline=0.5)
    assert [row["failed"] for row in run.history[1:]] == [1, 1, 0]
    assert run.summary["theta_sha256"] == expected.summary["theta_sha256"]


def test_who_is_missing_is_asked_again_until_enough_have_replied(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "scaffold", "lr = 0.05\nbatch = 16")
    run = deployed(folder, fleet(folder, 3, n1=in_turn(2, lost)), minimum=3, deadline=0.5)
    assert run.summary["theta_sha256"] == simulated(folder).summary["theta_sha256"]
    assert run.history[2]["failures"] == ["try 1 was void: 2 of 3 replies that are needed"]
    assert run.history[2]["accepted"] == 3


def test_a_run_stops_when_too_few_reply_again_and_again_and_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "scaffold", "lr = 0.05\nbatch = 16")
    grid = fleet(folder, 3, n1=lambda message, number: message if number == 1 else None)
    with pytest.raises(
        RunError, match=r"2 of the 3 replies that are needed .* came in 2 tries.*client 1 failed in rou"
    ):
        deployed(folder, grid, minimum=3, deadline=0.3, tries=2)
    grid.nodes[101].spoil = lambda message, number: message
    run = deployed(folder, grid, minimum=3)
    assert run.summary["theta_sha256"] == simulated(folder).summary["theta_sha256"]
    assert [row["round"] for row in run.history] == [0, 1, 2, 3]
    with pytest.raises(RunError, match="holds a run that is done"):
        deployed(folder, grid)


def test_a_run_that_was_begun_on_a_fleet_is_not_gone_on_with_in_the_simulator(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "scaffold", "lr = 0.05\nbatch = 16")
    grid = fleet(folder, 3, n1=lambda message, number: message if number == 1 else None)
    with pytest.raises(RunError):
        deployed(folder, grid, minimum=3, deadline=0.2, tries=1)
    with pytest.raises(RunError, match="begun on real devices"):
        train_again(folder)


def train_again(folder: Path) -> None:
    experiment = Experiment.load(folder / "experiment.toml")
    experiment.run(folder / "run", resume=True)


class Killed(Exception):
    """The server dies."""


@pytest.mark.parametrize("method", ["scaffold", "mocha"])
def test_a_server_that_dies_after_any_message_goes_on_in_the_same_bits(tmp_path: Path, method: str) -> None:
    folder = folder_with(tmp_path, method, METHODS[method])
    expected = simulated(folder).summary["theta_sha256"]

    def dies(message: Message, number: int) -> Message:
        if number in (2, 5):
            raise Killed
        return message

    grid = fleet(folder, 3)
    grid.nodes[102].spoil = dies
    for _ in range(2):
        with pytest.raises(Killed):
            deployed(folder, grid)
    assert json.loads((folder / "run" / "history.jsonl").read_text().splitlines()[-1])["round"] == 2
    assert deployed(folder, grid).summary["theta_sha256"] == expected


def test_a_client_has_the_same_number_whatever_node_it_comes_back_with(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "scaffold", "lr = 0.05\nbatch = 16")
    grid = fleet(folder, 3, n0=lambda message, number: message if number == 1 else None)
    with pytest.raises(RunError):
        deployed(folder, grid, minimum=3, deadline=0.2, tries=1)
    again = fleet(folder, 3)
    again.nodes = {7: again.nodes[102], 8: again.nodes[100], 9: again.nodes[101]}
    assert deployed(folder, again).summary["theta_sha256"] == simulated(folder).summary["theta_sha256"]


@pytest.mark.parametrize("method", ["scaffold", "admm", "fedavg", "mocha"])
def test_a_node_that_joins_late_takes_part_from_then_on(tmp_path: Path, method: str) -> None:
    folder = folder_with(tmp_path, method, METHODS[method])
    grid = fleet(folder, 3)
    grid.nodes[102].online = False

    def arrives(message: Message, number: int) -> Message:
        grid.nodes[102].online = True
        return message

    grid.nodes[100].spoil = arrives
    run = deployed(folder, grid, nodes=2)
    assert [row["accepted"] for row in run.history[1:]] == [2, 3, 3]
    assert run.summary["per_client"]["clients"] == [0, 1, 2]
    assert [card["name"] for card in json.loads((folder / "run" / "fleet.json").read_text())["clients"]] == list("012")


def test_a_node_that_was_killed_comes_back_with_the_dual_variables_that_the_server_has_seen(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "mocha", METHODS["mocha"])
    grid = fleet(folder, 3)
    killed = grid.nodes[101]

    def dies(message: Message, number: int) -> None:
        """It has computed, its reply is on no way, and all that it has in its process is gone."""
        killed.node = None

    killed.spoil = in_turn(2, dies)
    run = deployed(folder, grid, deadline=0.5)
    assert [row["accepted"] for row in run.history[1:]] == [3, 2, 3]
    problem = Experiment.load(folder / "experiment.toml").problem()
    number = json.loads((folder / "run" / "fleet.json").read_text())["run"]
    for client in range(3):
        memory = FileKeeper(str(client), folder / f"node-{client}", number).recall(2)
        assert memory is not None
        v = problem.client(client, Draw(0)).combined(memory["alpha"], 1.0)
        assert float(v.abs().max()) > 0
        assert torch.allclose(v, run.state["v"][client], rtol=1e-12, atol=1e-12)


def test_a_node_that_is_away_is_not_asked_and_comes_back_with_its_memory(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "scaffold", "lr = 0.05\nbatch = 16")
    grid = fleet(folder, 3)

    def leaves(message: Message, number: int) -> Message:
        grid.nodes[101].online = False
        return message

    def sees_it_return(message: Message, number: int) -> Message:
        grid.nodes[101].online |= number == 2
        return message

    grid.nodes[101].spoil, grid.nodes[102].spoil = in_turn(1, leaves), sees_it_return
    run = deployed(folder, grid)
    assert [(row["selected"], row["accepted"]) for row in run.history[1:]] == [(3, 3), (2, 2), (3, 3)]


def test_an_evaluation_leaves_out_who_does_not_answer(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    run = deployed(folder, fleet(folder, 3, n1=in_turn(4, lost)), deadline=0.5)
    accuracy = run.summary["spread"]["accuracy"]
    assert accuracy["clients"] == 2
    assert 0 < accuracy["weighted"] <= 1
    values = run.summary["per_client"]["accuracy"]
    assert [np.isnan(value) for value in values] == [False, True, False]
    assert run.history[-1]["failures"] == ["client 1 was not evaluated after round 3: no reply within 0.5 seconds"]


def test_an_evaluation_takes_no_answer_of_another_form(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)

    def renamed(message: Message, number: int) -> Message:
        tree = decode(message.content)
        tree["values"] = {"other": tree["values"]["loss"]}
        return make_message(message.metadata, content=encode(tree))

    run = deployed(folder, fleet(folder, 3, n0=in_turn(4, renamed)))
    assert run.summary["spread"]["accuracy"]["clients"] == 2
    assert [np.isnan(value) for value in run.summary["per_client"]["loss"]] == [True, False, False]


@pytest.mark.parametrize("part", ["values", "unknown"])
def test_an_evaluation_whose_form_nobody_knows_yet_takes_no_answer_that_is_none(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FlowerFleet, "_look_ahead", lambda self, shared, part: None)
    folder = folder_with(tmp_path)

    def strange(message: Message, number: int) -> Message:
        tree = decode(message.content)
        tree = {key: value for key, value in tree.items() if key != part} if part in tree else tree | {part: {}}
        return make_message(message.metadata, content=encode(tree))

    run = deployed(folder, fleet(folder, 3, n0=in_turn(4, strange)))
    assert run.summary["spread"]["accuracy"]["clients"] == 2
    assert run.history[-1]["failures"] == [
        "client 0 was not evaluated after round 3: the reply is no reply to this question"
    ]


def test_a_round_that_is_void_waits_for_nodes_that_come_back(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "scaffold", "lr = 0.05\nbatch = 16")
    grid = fleet(folder, 3)
    looks = 0

    def goes(message: Message, number: int) -> None:
        grid.nodes[101].online = False

    def online() -> list[int]:
        nonlocal looks
        if not grid.nodes[101].online:
            looks += 1
            grid.nodes[101].online = looks > 3
        return [number for number, node in grid.nodes.items() if node.online]

    grid.get_node_ids = online  # type: ignore[method-assign]
    grid.nodes[101].spoil = in_turn(2, goes)
    run = deployed(folder, grid, minimum=3, deadline=0.3, wait=10)
    assert run.summary["theta_sha256"] == simulated(folder).summary["theta_sha256"]
    assert looks > 3


def test_nodes_that_came_while_the_server_looked_for_them_are_there_however_long_it_took(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    run = deployed(folder, fleet(folder, 3), wait=1e-9)  # over before the first look is
    assert run.summary["theta_sha256"] == simulated(folder).summary["theta_sha256"]


def test_nodes_that_do_not_fit_together_are_named(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    other = folder_with(tmp_path / "other", more="")
    text = (other / "experiment.toml").read_text().replace('name = "digits"', 'name = "breast-cancer"')
    (other / "experiment.toml").write_text(text)
    grid = fleet(folder, 3)
    grid.nodes[101].folder = other
    with pytest.raises(
        RunError, match=r"2 of 3 nodes came .* node 101: the node of '1' has task = 'binary', but that of"
    ):
        deployed(folder, grid, wait=0.3)


@pytest.mark.parametrize(
    ("method", "more", "what"),
    [
        ("central", "", "wants the rows of all clients in one place"),
        ("sharing-admm", "", "columns of the same rows"),
        ("fedavg", "[stream]\nrate = 1\n", "time is real"),
    ],
)
def test_what_needs_rows_on_the_server_is_refused(tmp_path: Path, method: str, more: str, what: str) -> None:
    folder = folder_with(tmp_path, method, "", more=more)
    with pytest.raises(ConfigError, match=what):
        deployed(folder, fleet(folder, 3))


@pytest.mark.parametrize("line", ["public = 0.1", "fill = true", 'augment = "flip"'])
def test_what_would_change_the_rows_of_nodes_is_refused(tmp_path: Path, line: str) -> None:
    folder = folder_with(tmp_path)
    path = folder / "experiment.toml"
    path.write_text(path.read_text().replace('name = "digits"', f'name = "digits"\n{line}'))
    with pytest.raises(ConfigError, match=rf"data\.{line.split()[0]} is for a simulation"):
        deployed(folder, fleet(folder, 3))


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    deployed(folder, fleet(folder, 3))
    folder_with(tmp_path, options="lr = 0.2")
    with pytest.raises(RunError, match="other settings"):
        deployed(folder, fleet(folder, 3))
    assert deployed(folder, fleet(folder, 3), force=True).summary["rounds"] == 3


ASYNC = '[schedule]\nname = "async"\n'


@pytest.mark.parametrize(("method", "options"), [("fedasync", "lr = 0.1"), ("fedbuff", "lr = 0.1"), ("aso-fed", "")])
def test_an_asynchronous_method_takes_replies_as_they_come(tmp_path: Path, method: str, options: str) -> None:
    folder = folder_with(tmp_path, method, options, every=0, more=ASYNC)
    run = deployed(folder, fleet(folder, 3))
    assert [row["accepted"] for row in run.history[1:]] == [3, 3, 3]
    assert run.summary["schedule"] == "async"
    assert run.summary["simulated_seconds"] > 0
    assert run.summary["metrics"]["loss"] < 2.302  # ln 10 before the first step
    assert all(job[3] == "accepted" and job[1] <= job[2] for row in run.history[1:] for job in row["jobs"])


def test_with_one_client_at_a_time_an_asynchronous_fleet_ends_in_the_bits_of_the_simulator(tmp_path: Path) -> None:
    more = '[schedule]\nname = "async"\nconcurrency = 1\n[selection]\nname = "uniform"\nper_round = 1\n'
    folder = folder_with(tmp_path, "aso-fed", "", every=0, more=more)
    text = (folder / "experiment.toml").read_text().replace("clients = 3", "clients = 1")
    (folder / "experiment.toml").write_text(text)
    run = deployed(folder, fleet(folder, 1), nodes=1)
    assert run.summary["theta_sha256"] == simulated(folder).summary["theta_sha256"]


def test_a_reply_that_was_made_from_an_older_model_counts_its_steps(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "fedasync", "lr = 0.1", every=0, more=ASYNC)
    run = deployed(folder, fleet(folder, 3))
    assert [row["staleness"]["max"] for row in run.history[1:]] == [2, 2, 2]
    assert run.summary["server_steps"] == 9


def test_an_asynchronous_server_names_faults_and_goes_on(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "aso-fed", "", every=0, more=ASYNC)
    text = (folder / "experiment.toml").read_text()
    (folder / "experiment.toml").write_text(
        text.replace("clients = 3", "clients = 1").replace("rounds = 3", "rounds = 5")
    )
    nan = changed(wire=each(lambda value: value * torch.nan))
    spoil = {2: nan, 4: lost}
    grid = fleet(folder, 1, n0=lambda message, number: spoil.get(number, lambda m, _: m)(message, number))
    run = deployed(folder, grid, nodes=1, deadline=0.5)
    fates = [next(fate for fate in ("accepted", "failed", "late") if row[fate]) for row in run.history[1:]]
    assert fates == ["accepted", "failed", "accepted", "late", "accepted"]
    failures = [text.split(": ")[-1] for row in run.history for text in row.get("failures", [])]
    assert failures == ["the reply is not finite", "no reply within 0.5 seconds"]


def test_what_was_asked_is_forgotten_once_nobody_waits_for_the_reply(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "aso-fed", "", every=0, more=ASYNC)
    path = folder / "experiment.toml"
    path.write_text(path.read_text().replace("clients = 3", "clients = 1").replace("rounds = 3", "rounds = 5"))
    roster = Roster(Link(fleet(folder, 1, n0=lambda message, number: None if number < 4 else message)), folder / "run")
    roster.gather(1, 1.0)
    terms = Terms(out=str(folder / "run"), nodes=1, wait=1.0, deadline=0.2, tries=9)
    remote = FlowerFleet(roster, terms)
    prepared = Experiment.load(path).on(roster.data()).prepared()
    run = replace(prepared, setting=replace(prepared.setting, stack=1), executor=remote).run(folder / "run")
    assert [row["late"] for row in run.history[1:]] == [1, 1, 1, 0, 0]
    assert len(remote._begun) <= 1


def test_an_asynchronous_run_goes_on_after_its_server_died(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "aso-fed", "", every=0, more=ASYNC + "buffer = 2\n")
    grid = fleet(folder, 3)

    def dies(message: Message, number: int) -> Message:
        if number in (2, 4):
            raise Killed
        return message

    grid.nodes[102].spoil = dies
    for _ in range(2):
        with pytest.raises(Killed):
            deployed(folder, grid)
    run = deployed(folder, grid)
    assert [row["round"] for row in run.history] == [0, 1, 2, 3]
    assert sum(len(row.get("failures", [])) for row in run.history) == 0


def test_an_asynchronous_run_stops_when_nothing_can_be_taken(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "fedasync", "lr = 0.1", every=0, more=ASYNC)
    spoil = changed(wire=lambda wire: {})
    grid = fleet(folder, 3, n0=spoil, n1=spoil, n2=spoil)
    with pytest.raises(
        RunError, match=r"in 2 rounds after each other no reply could be taken: client . failed in round"
    ):
        deployed(folder, grid, tries=2)
