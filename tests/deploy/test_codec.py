"""What is encoded comes back bit by bit, and what is not exactly a message is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.deploy.codec import decode, encode
from fedloom.errors import MessageError

DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES += (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KEYS = st.text(max_size=6)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    top = 1 if dtype is torch.bool else 255
    raw = draw(st.lists(st.integers(0, top), min_size=count, max_size=count))
    return torch.tensor(raw, dtype=torch.uint8).view(dtype).reshape(shape)


LEAVES = st.one_of(
    tensors(),
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.lists(st.text(max_size=3), max_size=3),
)
TREES = st.dictionaries(KEYS, st.one_of(LEAVES, st.dictionaries(KEYS, LEAVES, max_size=3)), max_size=4)


def same(one: object, other: object) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and set(one) == set(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor)
        bits = [value.reshape(-1).view(torch.uint8) for value in (one, other)]
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)
    return type(one) is type(other) and one == other


@settings(deadline=None)
@given(TREES)
def test_every_tree_comes_back_bit_by_bit(tree: dict[str, object]) -> None:
    assert same(tree, decode(encode(tree)))


def test_arrays_of_numpy_come_back_as_such() -> None:
    back = decode(encode({"clients": np.array([3], dtype=np.int64), "effort": np.array([0.1])}))
    assert isinstance(back["clients"], np.ndarray)
    assert back["clients"].dtype == np.int64
    assert back["clients"].tolist() == [3]
    assert back["effort"].tolist() == [0.1]


def test_a_number_that_was_expanded_is_a_number() -> None:
    one = torch.tensor(1.5).expand(1)
    assert decode(encode({"x": one}))["x"].tolist() == [1.5]


def test_numbers_travel_with_the_least_significant_byte_first() -> None:
    record = encode({"x": torch.tensor([1, 256], dtype=torch.int16)})
    assert record["arrays"]["x"].data == b"\x01\x00\x00\x01"


def array(dtype: str = "float32", shape: tuple[int, ...] = (2,), stype: str = "fedloom.tensor", data: int = 8) -> Array:
    return Array(dtype=dtype, shape=shape, stype=stype, data=bytes(data))


def message(arrays: dict[str, Array], text: str = "{}") -> RecordDict:
    return RecordDict({"arrays": ArrayRecord(arrays), "rest": ConfigRecord({"json": text})})


@pytest.mark.parametrize(
    ("record", "what"),
    [
        (RecordDict(), "has the records"),
        (RecordDict({"arrays": ArrayRecord(), "rest": MetricRecord({"json": 1})}), "other kinds"),
        (RecordDict({"arrays": ArrayRecord(), "rest": ConfigRecord({"json": b"{}"})}), "no text"),
        (message({}, "{"), "cannot be read"),
        (message({}, "[" * 100_000), "cannot be read"),
        (message({}, "[1]"), "no table"),
        (message({"x": array("object")}), "unknown kind"),
        (message({"x": array(stype="numpy.ndarray")}), "unknown kind"),
        (message({"x": array(shape=(3,))}), "12 make"),
        (message({"x": array(shape=(-1, -2))}), "shape"),
        (message({"x": array(shape=(2**62, 2**62), data=0)}), "0 bytes"),
        (message({"x": array()}, '{"x": 1}'), "twice"),
        (message({"x/y": array()}, '{"x": 1}'), "no table"),
        (message({"/".join("abcdefghijkl"): array()}), "too deep"),
        (message({"x": Array(dtype="bool", shape=(1,), stype="fedloom.tensor", data=b"\x02")}), "neither 0 nor 1"),
    ],
)
def test_what_is_no_message_is_refused(record: RecordDict, what: str) -> None:
    with pytest.raises(MessageError, match=what):
        decode(record)


def test_a_message_above_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(MessageError, match=r"4,002 bytes in 1 arrays; at most 4,000"):
        decode(encode({"x": torch.zeros(1000)}), limit=4000)


def test_a_tensor_that_nobody_could_read_is_not_sent() -> None:
    with pytest.raises(MessageError, match="complex64 cannot be sent"):
        encode({"x": torch.zeros(1, dtype=torch.complex64)})


@pytest.mark.parametrize(
    ("record", "what"),
    [
        (message({"x": array("bfloat16", stype="fedloom.ndarray", data=4)}), "which NumPy does not have"),
        (message({"x": array(shape=(1,) * 70, data=4)}), "70 axes; at most 16"),
        (message({"x": array(shape=(1, 0, 2**31 - 1, 2**31 - 1, 2**31 - 1), data=0)}), "larger than any message"),
        (message({}, '{"a": NaN}'), "NaN is no number"),
        (message({}, '{"a":' * 50 + "1" + "}" * 50), "more than 8 deep"),
        (message({}, '{"a": "' + "x" * (17 << 20) + '"}'), "characters; at most"),
    ],
)
def test_what_torch_numpy_or_json_would_stumble_over_is_refused(record: RecordDict, what: str) -> None:
    with pytest.raises(MessageError, match=what):
        decode(record)
