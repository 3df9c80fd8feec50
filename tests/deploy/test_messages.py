"""Whatever a node sends, the server reads a valid value or refuses it by name; nothing else comes of it."""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from local_grid import carried, fleet
from test_fleet import folder_with

from fedloom.deploy import Terms, serve
from fedloom.deploy.card import Card, described
from fedloom.deploy.executor import Fleet
from fedloom.deploy.link import Link, Reply
from fedloom.deploy.reading import UNFORESEEN, read
from fedloom.deploy.roster import Roster
from fedloom.errors import ClientError
from fedloom.execution.work import Evaluated, Measured, Trained, Work
from fedloom.experiment import Experiment
from fedloom.federation.replies import WEIGHT


class Watched(Fleet):
    """Remembers the first question of each kind, and its honest reply."""

    def __init__(self, roster: Roster, terms: Terms) -> None:
        super().__init__(roster, terms)
        self.seen: dict[str, tuple[Work, Reply]] = {}

    def taken(self, part: Work, reply: Reply) -> Any:
        self.seen.setdefault(part.kind, (part, reply))
        return super().taken(part, reply)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """The server of a run whose nodes were asked for turns, for evaluations and for measurements."""
    folder = folder_with(tmp_path_factory.mktemp("watched"), "fedmeta-maml", "gradient_norm = true", every=1)
    roster = Roster(Link(fleet(folder, 3)), folder / "run")
    roster.gather(3, 1.0)
    found = Watched(roster, Terms(out=str(folder / "run"), nodes=3, wait=1.0, deadline=1.0))
    prepared = Experiment.load(folder / "experiment.toml").on(roster.data()).prepared()
    replace(prepared, setting=replace(prepared.setting, stack=1), executor=found).run(folder / "run")
    assert set(found.seen) == {"turn", "evaluate", "measure"}
    return found


BAD = "\x1b[2J\x00\r\n\u202e\ud800"
NUMBERS = st.one_of(
    st.sampled_from([0, -1, 2**31 - 1, 2**63, -(2**63), 10**18, 10**400, 1e308, -1e308, 1e30]),
    st.integers(-3, 70),
    st.floats(allow_nan=False),
)
WORDS = st.sampled_from(["", "train", BAD, "x" * 3000, "0", "classification"])
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=8,
)
SHAPES = st.one_of(
    st.sampled_from(
        [(1, 0, 2**31 - 1, 2**31 - 1, 2**31 - 1), (1,) * 70, (2**62, 2**62), (-1,), (1, 0), (), (1,), (1, 1)]
    ),
    st.lists(st.integers(0, 3), max_size=4).map(tuple),
)
DTYPES = st.sampled_from(
    ["bool", "uint8", "int8", "int64", "float16", "bfloat16", "float32", "float64", "object", "complex64", BAD, ""]
)
TYPES = st.sampled_from(["fedloom.tensor", "fedloom.ndarray", "numpy.ndarray", BAD])
DOUBLES = st.sampled_from([float("nan"), float("inf"), 1e308, -1e308, 1e30, -1.0, 0.0, 0.5, 1e9, 5e-324])
PATHS = st.sampled_from(
    ["nonce", "error", "wire", "wire/dx", "values/loss/x", "/".join("abcdefghijkl"), BAD, "", "%ff/%00"]
)
TEXTS = st.one_of(
    st.sampled_from(['{"a":' * 5000, "[" * 100_000, '{"a": NaN}', '{"a": 1e999}', "null", "", BAD, "9" * 5000]),
    VALUES.map(json.dumps),
)
Arrays = dict[str, Array]


@st.composite
def mutated(draw: st.DrawFn, arrays: Arrays, text: str) -> RecordDict:
    """An honest reply after one to three things were done to it."""
    arrays = dict(arrays)
    extra: dict[str, Any] = {}
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(sorted(arrays))) if arrays else ""
        old = arrays.get(path, Array("float32", (1,), "fedloom.tensor", bytes(4)))
        match draw(
            st.sampled_from(["value", "value", "kind", "shape", "data", "add", "drop", "text", "key", "key", "record"])
        ):
            case "value":
                number, dtype = draw(DOUBLES), {"float32": np.float32, "float64": np.float64}.get(old.dtype, np.int64)
                with np.errstate(all="ignore"):
                    whole = len(old.data) // np.dtype(dtype).itemsize * np.dtype(dtype).itemsize
                    made = np.frombuffer(old.data[:whole], dtype).copy()
                    made[draw(st.integers(0, max(0, len(made) - 1))) :] = np.array([number]).astype(dtype)
                arrays[path] = Array(old.dtype, old.shape, old.stype, made.tobytes())
            case "kind":
                arrays[path] = Array(draw(DTYPES), old.shape, draw(TYPES), old.data)
            case "shape":
                arrays[path] = Array(
                    old.dtype, draw(SHAPES), old.stype, old.data[: draw(st.sampled_from([0, 4, 8, 2**30]))]
                )
            case "data":
                arrays[path] = Array(old.dtype, old.shape, old.stype, draw(st.binary(max_size=16)))
            case "add":
                arrays[draw(PATHS)] = Array("float64", (1,), draw(TYPES), struct.pack("<d", draw(DOUBLES)))
            case "drop":
                arrays.pop(path, None)
            case "text":
                text = draw(TEXTS)
            case "key":
                try:
                    tree = json.loads(text)
                except (ValueError, RecursionError):
                    continue
                if isinstance(tree, dict):
                    inner = draw(
                        st.sampled_from([tree, *(value for value in tree.values() if isinstance(value, dict))])
                    )
                    inner[draw(st.sampled_from([*inner, "error", "extra", BAD]))] = draw(VALUES)
                    text = json.dumps(tree)
            case "record":
                extra[draw(st.sampled_from(["arrays", "rest", "more"]))] = MetricRecord({"a": 1})
    records = {"arrays": ArrayRecord(arrays), "rest": ConfigRecord({"json": text})}
    return RecordDict({**records, **extra})


def parts(reply: Reply) -> tuple[Arrays, str]:
    assert reply.message is not None
    return dict(reply.message.content["arrays"]), str(reply.message.content["rest"]["json"])


def refused(error: ClientError) -> None:
    text = str(error)
    assert text.isprintable()
    assert len(text) <= 500
    assert UNFORESEEN not in text  # a fault that the server foresaw


def sound(part: Work, found: Any, server: Watched) -> None:
    """What was taken is within all bounds."""
    if isinstance(found, Trained):
        rows = server.roster.cards[int(part.clients[0])].sizes["train"]
        assert 0 <= int(found.evaluations[0]) <= 10**12
        assert set(found.sent) == {"dx", WEIGHT} or set(found.sent) == {"dx"}
        assert bool(torch.isfinite(found.sent["dx"]).all())
        assert float(found.sent["dx"].double().norm()) <= 1e6 * max(rows, 1)
    elif isinstance(found, Evaluated):
        assert 0 <= float(found.values["accuracy"]) <= 1
        assert abs(float(found.values["loss"])) <= 1e9
        assert int(found.counts) == server.roster.cards[int(part.clients[0])].sizes[part.split]  # type: ignore[attr-defined]
    else:
        assert isinstance(found, Measured)
        assert all(bool(torch.isfinite(value).all()) for value in found.values.values())


@pytest.mark.parametrize("kind", ["turn", "evaluate", "measure"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_reply_is_a_valid_value_or_refused_by_name(watched: Watched, kind: str, data: st.DataObject) -> None:
    part, honest = watched.seen[kind]
    assert honest.message is not None
    content = data.draw(mutated(*parts(honest)))
    nonce = data.draw(st.sampled_from([honest.nonce, honest.nonce, honest.nonce, "0" * 32]))
    message = make_message(honest.message.metadata, content=content)
    try:
        found = watched.taken(part, Reply(nonce, message))
    except ClientError as error:
        refused(error)
    else:
        assert nonce == honest.nonce
        sound(part, found, watched)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_card_is_one_that_the_server_can_work_with_or_refused_by_name(
    watched: Watched, data: st.DataObject
) -> None:
    roster, honest = watched.roster, watched.seen["turn"][1]
    assert honest.message is not None
    text = json.dumps({"card": roster.cards[0].tree(), "nonce": honest.nonce})
    message = make_message(honest.message.metadata, content=data.draw(mutated({}, text)))
    try:
        card = read(Reply(honest.nonce, message), 16 << 20, roster._card)
    except ClientError as error:
        refused(error)
        return
    assert isinstance(card, Card)
    assert card.name.isprintable()
    if card.form == roster.cards[0].form:
        assert described([roster.cards[0], card]).splits["train"].sizes.tolist()[1] == card.sizes["train"] <= 10**9
    else:
        with pytest.raises(Exception, match="all nodes of a fleet must agree"):
            roster.cards[0].refuse_other(card)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_run_ends_whatever_one_node_sends(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = folder_with(tmp_path_factory.mktemp("fuzzed"), every=0)
    path = folder / "experiment.toml"
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 2"))

    def spoil(message: Message, number: int) -> Message:
        if data.draw(st.booleans()):
            return Message(Error(data.draw(st.integers(0, 9)), BAD), reply_to=message)
        arrays, text = dict(message.content["arrays"]), str(message.content["rest"]["json"])
        try:
            return carried(make_message(message.metadata, content=data.draw(mutated(arrays, text))))
        except (ValueError, TypeError, OverflowError):  # what Flower itself does not carry
            return message

    terms = Terms(out=str(folder / "run"), nodes=3, wait=1.0, deadline=0.2, strikes=100)
    grid = fleet(folder, 3, n2=spoil)
    run = serve(grid, Experiment.load(path), terms)
    assert run.summary["finished"]
    assert all(row["accepted"] >= 2 for row in run.history[1:])
    assert all(text.isprintable() for row in run.history for text in row.get("failures", []))
    assert 0 <= run.summary["metrics"]["accuracy"] <= 1
