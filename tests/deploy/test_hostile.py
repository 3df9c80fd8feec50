"""Nodes that are broken, or somebody else's: a run ends with the others, as if these were not there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message import make_message

sys.path.insert(0, str(Path(__file__).parent))
from local_grid import LocalGrid, Spoil, fleet
from test_fleet import Killed, deployed, folder_with, in_turn, lost

from fedloom.deploy import link
from fedloom.deploy.agreement import Agreed
from fedloom.deploy.codec import decode, encode
from fedloom.engine.run import Run
from fedloom.engine.sealing import rows_sha256
from fedloom.errors import RunError

HOSTILE = (4, 5)


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """An experiment for six nodes, and the run in which the last two never came."""
    folder = folder_with(tmp_path_factory.mktemp("six"), every=2)
    path = folder / "experiment.toml"
    path.write_text(path.read_text().replace("clients = 3", "clients = 6").replace("rounds = 3", "rounds = 2"))
    grid = fleet(folder, 6)
    for place in HOSTILE:
        grid.nodes[100 + place].online = False
    return folder, deployed(folder, grid, "honest", nodes=4)


def rewritten(change: Callable[[dict[str, Any]], Any]) -> Spoil:
    """The reply after its tree was changed."""

    def spoil(message: Message, number: int) -> Message:
        tree = decode(message.content)
        change(tree)
        return make_message(message.metadata, content=encode(tree))

    return spoil


def put(path: str, value: Callable[[Any], Any]) -> Spoil:
    """The reply with a part of its tree changed, which is known by its path."""

    def change(tree: dict[str, Any]) -> None:
        *way, last = path.split("/")
        for part in way:
            tree = tree[part]
        tree[last] = value(tree[last])

    return rewritten(change)


def rearranged(change: Callable[[Array], Array]) -> Spoil:
    """The reply after its arrays were changed as they travel."""

    def spoil(message: Message, number: int) -> Message:
        arrays = {name: change(array) for name, array in message.content["arrays"].items()}
        content = RecordDict({"arrays": ArrayRecord(arrays), "rest": message.content["rest"]})
        return make_message(message.metadata, content=content)

    return spoil


def said(text: str) -> Spoil:
    """A reply whose numbers and words are this text."""

    def spoil(message: Message, number: int) -> Message:
        content = RecordDict({"arrays": ArrayRecord(), "rest": ConfigRecord({"json": text})})
        return make_message(message.metadata, content=content)

    return spoil


def again() -> Spoil:
    """The first reply of a kind does not come; then it comes, again and again."""
    first: dict[bool, RecordDict] = {}

    def spoil(message: Message, number: int) -> Message | None:
        kind = trains(message)
        if kind not in first:
            first[kind] = message.content
            return None
        return make_message(message.metadata, content=first[kind])

    return spoil


def trains(message: Message) -> bool:
    return "wire/dx" in message.content["arrays"]


def spoilt(turn: Spoil, evaluation: Spoil) -> Spoil:
    return lambda message, number: (turn if trains(message) else evaluation)(message, number)


def scaled(factor: float) -> Spoil:
    """Another accuracy, with counts that come to it."""

    def change(tree: dict[str, Any]) -> None:
        tree["values"]["accuracy"] *= factor
        tree["sums"]["accuracy"][0] *= factor

    return rewritten(change)


NAN_TURN = put("wire/dx", lambda value: value * torch.nan)
NAN_EVALUATION = put("sums/accuracy", lambda value: value * torch.nan)
EVIL = "fine\x1b[2J\x1b]0;owned\x07\r\nround 9/9, accuracy 1"
HUGE = (1, 0, 2**31 - 1, 2**31 - 1, 2**31 - 1)
REPLIES: dict[str, tuple[Spoil, str]] = {
    "bfloat16 of NumPy": (
        rearranged(lambda a: Array("bfloat16", (1,), "fedloom.ndarray", b"\0\0")),
        "which NumPy does not have",
    ),
    "seventy axes": (rearranged(lambda a: Array(a.dtype, (1,) * 70, a.stype, bytes(4))), "has 70 axes"),
    "empty and huge": (rearranged(lambda a: Array(a.dtype, HUGE, a.stype, b"")), "larger than any message"),
    "sides below 0": (rearranged(lambda a: Array(a.dtype, (-1, 4), a.stype, b"")), "has the shape"),
    "unknown kind": (rearranged(lambda a: Array("object", a.shape, a.stype, a.data)), "unknown kind"),
    "too little": (rearranged(lambda a: Array(a.dtype, a.shape, a.stype, a.data[:-1])), "bytes; "),
    "control characters": (rewritten(lambda tree: tree.update(error=EVIL)), "round 9/9, accuracy 1"),
    "an error that is no text": (rewritten(lambda tree: tree.update(error={"a": [1]})), "says not why"),
    "deep": (said('{"a":' * 5000 + "1" + "}" * 5000), "cannot be read"),
    "less deep": (said('{"a":' * 50 + "1" + "}" * 50), "more than 8 deep"),
    "5000 digits": (said('{"a": ' + "9" * 5000 + "}"), "cannot be read"),
    "NaN in words": (said('{"a": NaN}'), "NaN is no number"),
    "no nonce": (rewritten(lambda tree: tree.pop("nonce")), "answers another question"),
    "an old reply": (again(), "answers another question"),
    "nothing": (lost, "no reply"),
}
TURNS: dict[str, tuple[Spoil, str]] = {
    "1e30": (put("wire/dx", lambda value: torch.full_like(value, 1e30)), "has the norm inf; at most 1e+06 is taken"),
    "1e8": (put("wire/dx", lambda value: value * 0 + 1e8), "at most 1e+06 is taken (norm in the terms)"),
    "a weight of a billion": (put("wire/weight", lambda value: value + 1e9), "wants to count for"),
    "a weight below 0": (put("wire/weight", lambda value: -value), "wants to count for"),
    "counters": (put("evaluations", lambda old: old * 0 + (2**63 - 1)), "says what cannot be"),
    "figures": (put("figures", lambda old: {"a": torch.ones(1)}), "'figures/a' is float32 of shape [1], not missing"),
}
EVALUATIONS: dict[str, tuple[Spoil, str]] = {
    "NaN": (put("values/accuracy", lambda value: value * torch.nan), "not what its counts come to"),
    "1e308": (put("values/accuracy", lambda value: value * 0 + 1e308), "not what its counts come to"),
    "counts of NaN": (put("sums/loss", lambda sums: sums * torch.nan), "the loss of the reply is not finite"),
    "counts of 1e308": (put("sums/accuracy", lambda sums: sums * 0 + 1e308), "is of more rows than the"),
    "counts of nothing": (put("sums/loss", lambda sums: sums * 0), "not what its counts come to"),
    "a sum of 1e308": (put("sums/loss", lambda sums: sums * 0 + 1e300), "is of more rows than the"),
    "too good": (scaled(9.0), "it lies between 0 and 1"),
    "below 0": (scaled(-1.0), "counts that cannot be"),
    "more rows": (put("counts", lambda counts: counts + 2**62), "another number of rows than the"),
    "another metric": (put("values", lambda values: {"other": values["loss"]}), "another form"),
}
WAYS = {f"reply, {way}": found for way, found in REPLIES.items()}
WAYS |= {f"turn, {way}": (spoilt(spoil, NAN_EVALUATION), why) for way, (spoil, why) in TURNS.items()}
WAYS |= {f"evaluation, {way}": (spoilt(NAN_TURN, spoil), why) for way, (spoil, why) in EVALUATIONS.items()}


def pairs(ways: dict[str, Any]) -> list[tuple[str, str]]:
    """One way for each of two nodes; all ways in turn."""
    names = list(ways)
    return list(zip(names[::2], [*names[1::2], *names[: len(names) % 2]], strict=True))


@pytest.mark.parametrize("ways", pairs(WAYS), ids=" and ".join)
def test_the_run_is_that_of_the_honest_nodes_whatever_two_of_six_reply(
    six: tuple[Path, Run], tmp_path: Path, ways: tuple[str, str]
) -> None:
    folder, honest = six
    grid = fleet(folder, 6, n4=WAYS[ways[0]][0], n5=WAYS[ways[1]][0])
    run = deployed(folder, grid, str(tmp_path / "run"), nodes=6, deadline=0.2)
    told = [text for row in run.history for text in row.get("failures", [])]
    for place, way in zip(HOSTILE, ways, strict=True):
        own = [text for text in told if text.startswith(f"client {place} ")]
        assert any(WAYS[way][1] in text for text in own), own
    assert all(text.isprintable() and text.startswith(("client 4 ", "client 5 ")) for text in told)
    assert run.summary["theta_sha256"] == honest.summary["theta_sha256"]
    assert run.summary["metrics"] == honest.summary["metrics"]
    assert run.summary["spread"] == honest.summary["spread"]


def card(**changes: Any) -> Spoil:
    return rewritten(lambda tree: tree["card"].update(changes))


CARDS: dict[str, tuple[Spoil, str]] = {
    "2**63 rows": (card(sizes={"train": 2**63, "test": 1}), "at most 1,000,000,000 are believed"),
    "10**18 rows": (card(sizes={"train": 10**18, "test": 1}), "at most 1,000,000,000 are believed"),
    "rows below 0": (card(sizes={"train": -1, "test": 1}), "splits, sizes or role"),
    "a huge shape": (card(shape=[2**40, 2**40]), "which cannot be"),
    "many axes": (card(shape=[1] * 70), "which cannot be"),
    "a number of 400 digits": (card(client=10**400), "is none that a client can have"),
    "many outputs": (card(outputs=10**12), "outputs"),
    "control characters": (card(name=EVIL), "has control characters"),
    "the name of an honest one": (card(name="0"), "two nodes call themselves '0'"),
    "a long name": (card(name="x" * 10_000), "has 10,000 letters"),
    "another task": (card(task="regression", shape=[3]), "all nodes of a fleet must agree"),
    "a card that is none": (rewritten(lambda tree: tree.update(card=[[[1]]])), "it is no table of names"),
    "an unknown key": (rewritten(lambda tree: tree["card"].update(extra=1)), "its description is none"),
    "no nonce": (rewritten(lambda tree: tree.pop("nonce")), "answers another question"),
}


@pytest.mark.parametrize("ways", pairs(CARDS), ids=" and ".join)
def test_the_run_is_that_of_the_honest_nodes_whatever_two_of_six_say_of_themselves(
    six: tuple[Path, Run], tmp_path: Path, ways: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    folder, honest = six
    grid = fleet(folder, 6)
    for place, way in zip(HOSTILE, ways, strict=True):
        grid.nodes[100 + place].says = CARDS[way][0]
    run = deployed(folder, grid, str(tmp_path / "run"), nodes=4)
    for place, way in zip(HOSTILE, ways, strict=True):
        own = [text for text in caplog.messages if text.startswith(f"node {100 + place} cannot take part: ")]
        assert any(CARDS[way][1] in text for text in own), caplog.messages
    assert all(text.isprintable() for text in caplog.messages)
    assert run.summary["theta_sha256"] == honest.summary["theta_sha256"]
    assert run.summary["spread"] == honest.summary["spread"]


@pytest.mark.parametrize("spoil", [WAYS["turn, 1e8"][0], lost], ids=["wrong replies", "none"])
def test_an_honest_node_has_its_name_back_once_the_other_of_that_name_has_failed(
    six: tuple[Path, Run], tmp_path: Path, spoil: Spoil, caplog: pytest.LogCaptureFixture
) -> None:
    folder, honest = six
    grid = fleet(folder, 6, n4=spoil)
    thief = grid.nodes.pop(104)
    thief.says = rewritten(
        lambda tree: (tree["card"].update(name="0", client=0), tree["card"]["sizes"].update(train=7))
    )
    grid.nodes = {5: thief, **{number: grid.nodes[number] for number in range(100, 104)}}  # and is looked at first
    run = deployed(folder, grid, str(tmp_path / "run"), nodes=4, minimum=4, deadline=0.2)
    assert "node 100 cannot take part: two nodes call themselves '0'; every client needs a name of its own" in [
        *caplog.messages
    ]
    assert "client 0 (0) is on node 100 now: that of the same name, 5, has failed before it had any reply taken" in [
        *caplog.messages
    ]
    assert run.summary["theta_sha256"] == honest.summary["theta_sha256"]
    assert run.summary["metrics"] == honest.summary["metrics"]


def test_a_client_whose_replies_were_taken_keeps_its_name(six: tuple[Path, Run], tmp_path: Path) -> None:
    folder, _ = six
    fails = spoilt(lambda message, number: NAN_TURN(message, number) if number > 2 else message, lambda reply, _: reply)
    grid = fleet(folder, 6, n0=fails)
    thief = grid.nodes.pop(104)
    thief.says = card(name="0")
    grid.nodes = {**{number: grid.nodes[number] for number in range(100, 104)}, 105: thief}
    run = deployed(folder, grid, str(tmp_path / "run"), nodes=4)
    assert thief.answered == 0
    told = [text for row in run.history for text in row.get("failures", [])]
    assert [text.split(":")[0] for text in told] == ["client 0 failed in round 2"]


class Clock:
    """Time that passes only where somebody would sleep."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_dead_node_costs_one_deadline_and_not_one_in_every_round(
    six: tuple[Path, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, honest = six
    clock = Clock()
    monkeypatch.setattr(link, "time", clock)
    run = deployed(folder, fleet(folder, 6, n4=lost, n5=lost), str(tmp_path / "run"), nodes=6, deadline=600.0)
    assert run.summary["theta_sha256"] == honest.summary["theta_sha256"]
    assert 600 <= clock.now < 601  # and were asked three times
    assert run.history[-1]["failures"]
    told = [text for row in run.history for text in row["failures"]]
    assert "client 4 was not evaluated after round 0: no reply within 600 seconds" in told
    assert any("client 4 failed in round 1: still no reply; it missed an earlier deadline" in text for text in told)


class Slow(LocalGrid):
    """Replies come so many seconds after they were asked for, by a clock that the test turns."""

    def __init__(self, grid: LocalGrid, clock: Clock, seconds: dict[tuple[int, int], float]) -> None:
        super().__init__()
        self.nodes, self.clock, self.seconds = grid.nodes, clock, seconds
        self.ready: dict[str, float] = {}

    def push_messages(self, messages: Any) -> Any:
        messages = list(messages)
        numbers = super().push_messages(messages)
        for number, message in zip(numbers, messages, strict=True):
            node = message.metadata.dst_node_id
            self.ready[number] = self.clock.now + self.seconds.get((node, self.nodes[node].answered), 0.0)
        return numbers

    def pull_messages(self, message_ids: Any) -> Any:
        return super().pull_messages([n for n in message_ids if self.ready[n] <= self.clock.now])


def test_a_node_that_missed_a_deadline_is_waited_for_again_once_it_was_heard_of(
    six: tuple[Path, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = six
    clock = Clock()
    monkeypatch.setattr(link, "time", clock)
    # Its first reply (an evaluation) comes after the deadline, while others are waited for in the first round; its
    # second is later than theirs; the third is slow, and is waited for.
    seconds = {(105, 1): 700.0, (100, 2): 200.0, (105, 2): 300.0, (105, 3): 250.0}
    grid = Slow(fleet(folder, 6), clock, seconds)
    run = deployed(folder, grid, str(tmp_path / "run"), nodes=6, deadline=600.0)
    told = [text for row in run.history for text in row.get("failures", [])]
    assert [text.partition(":")[0] for text in told] == [
        "client 5 was not evaluated after round 0",
        "client 5 failed in round 1",
    ]
    assert [row.get("accepted") for row in run.history[1:]] == [5, 6]
    assert 1050 <= clock.now < 1053


def test_a_node_that_fails_again_and_again_is_left_out(six: tuple[Path, Run], tmp_path: Path) -> None:
    folder, honest = six
    grid = fleet(folder, 6, n4=NAN_ALWAYS, n5=NAN_ALWAYS)
    run = deployed(folder, grid, str(tmp_path / "run"), nodes=6, strikes=2, pause=1e9)
    assert [row["selected"] for row in run.history[1:]] == [6, 4]
    assert grid.nodes[104].answered == 2  # an evaluation and a turn
    assert run.summary["theta_sha256"] == honest.summary["theta_sha256"]
    told = run.history[2]["failures"]
    assert (
        "client 4 was not evaluated after round 2: it is left out for a while, after 2 failures one after the other"
        in told
    )


def test_a_node_is_not_left_out_where_the_others_are_too_few_or_once_its_pause_is_over(
    six: tuple[Path, Run], tmp_path: Path
) -> None:
    folder, _ = six
    few = deployed(
        folder,
        fleet(folder, 6, n4=in_turn(2, NAN_TURN)),
        str(tmp_path / "few"),
        nodes=6,
        minimum=6,
        strikes=1,
        pause=1e9,
    )
    assert [row["accepted"] for row in few.history[1:]] == [6, 6]
    over = deployed(
        folder, fleet(folder, 6, n4=in_turn(2, NAN_TURN)), str(tmp_path / "over"), nodes=6, strikes=1, pause=1e-9
    )
    assert [row["accepted"] for row in over.history[1:]] == [5, 6]


NAN_ALWAYS = spoilt(NAN_TURN, NAN_EVALUATION)


class Broken(LocalGrid):
    """Flower cannot put the replies of nodes 104 and 105 together."""

    def __init__(self, grid: LocalGrid) -> None:
        super().__init__()
        self.nodes = grid.nodes
        self.bad: set[str] = set()

    def push_messages(self, messages: Any) -> Any:
        messages = list(messages)
        numbers = super().push_messages(messages)
        for number, message in zip(numbers, messages, strict=True):
            if message.metadata.dst_node_id - 100 in HOSTILE and "own.arrays" in message.content:
                self.bad |= {number} if decode_kind(message) != "hello" else set()
        return numbers

    def pull_messages(self, message_ids: Any) -> Any:
        wanted = list(message_ids)
        if any(number in self.bad and self.replies.pop(number, None) is not None for number in wanted):
            raise ValueError("Unexpected format for object head.")
        return super().pull_messages(wanted)


def decode_kind(message: Message) -> str:
    return str(json.loads(str(message.content["own.rest"]["json"]))["function"])


def test_a_reply_that_flower_cannot_put_together_costs_no_other(six: tuple[Path, Run], tmp_path: Path) -> None:
    folder, honest = six
    run = deployed(folder, Broken(fleet(folder, 6)), str(tmp_path / "run"), nodes=6, deadline=0.5)
    told = [text for row in run.history for text in row["failures"]]
    assert any("Flower cannot put it together" in text for text in told)
    assert run.summary["theta_sha256"] == honest.summary["theta_sha256"]
    assert run.summary["spread"] == honest.summary["spread"]


@pytest.mark.parametrize("limit", [{"norm": 1e-9}, {"metric": 1e-9}, {"rows": 3}])
def test_the_limits_are_the_users(six: tuple[Path, Run], tmp_path: Path, limit: dict[str, float]) -> None:
    folder, _ = six
    words = {
        "norm": "at most 1e-09 is taken",
        "metric": "it lies between -1e-09 and 1e-09",
        "rows": "at most 3 are believed",
    }
    with pytest.raises(RunError, match=words[next(iter(limit))]):
        deployed(folder, fleet(folder, 6), str(tmp_path / "run"), nodes=6, wait=0.1, tries=1, **limit)


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
@pytest.mark.parametrize("kept", ["folder", "context"])
def test_a_node_whose_rows_have_changed_does_not_go_on_with_the_run(tmp_path: Path, method: str, kept: str) -> None:
    folder = folder_with(tmp_path, method, "lr = 0.1\nbatch = 16")
    grid = fleet(folder, 3, n2=dies_at(2))
    other = folder_with(tmp_path / "other", method, "lr = 0.1\nbatch = 16")
    path = other / "experiment.toml"
    path.write_text(path.read_text().replace("alpha = 0.5", "alpha = 0.6"))
    if kept == "context":
        for node in grid.nodes.values():
            del node.config["state"]
    with pytest.raises(Killed):
        deployed(folder, grid)
    assert grid.nodes[100].node is not None
    before = rows_sha256(grid.nodes[100].node.rows(Agreed()))
    grid.nodes[102].spoil, grid.nodes[100].folder = (lambda message, number: message), other
    run = deployed(folder, grid)
    assert rows_sha256(grid.nodes[100].node.rows(Agreed())) != before
    assert [row["accepted"] for row in run.history[2:]] == [2, 2]
    assert run.history[2]["failures"] == [
        "client 0 failed in round 2: the rows of this node have changed since it began with this run; put them back as "
        "they were, or start a new run"
    ]
    assert before not in "".join(
        path.read_text(errors="replace") for path in (folder / "run").iterdir() if path.is_file()
    )


def dies_at(at: int) -> Spoil:
    def dies(message: Message, number: int) -> Message:
        if number == at:
            raise Killed
        return message

    return dies
