import json
import math
import os
import struct
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.errors import RunError
from fedloom.storage import checkpoint

GROUPS = {
    "state": {"x": torch.arange(5, dtype=torch.float64) / 3, "scale": torch.tensor(2.5)},
    "memory": {"segments": torch.tensor([3, 7]), "flag": torch.tensor([True, False])},
}
META = {"round": 7, "clocks": {"seconds": 0.1 + 0.2}, "names": ["a", "ü"]}
FLOATS = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 complex64 complex128"
WHOLES = "int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool"
DTYPES = [getattr(torch, name) for name in (FLOATS + " " + WHOLES).split()]


def bits(tensor):
    return tensor.dtype, tuple(tensor.shape), tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def same(found, given):
    assert {g: {k: bits(t) for k, t in ts.items()} for g, ts in found.items()} == {
        g: {k: bits(t.resolve_conj()) for k, t in ts.items()} for g, ts in given.items()
    }


def random_bits(dtype, shape):
    count = math.prod(shape) * dtype.itemsize
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (count,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.dictionaries(
            st.text(max_size=5), st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)), max_size=3
        ),
        max_size=3,
    )
)
@settings(deadline=None, max_examples=40)
def test_any_names_dtypes_and_shapes_come_back_bit_by_bit(tmp_path_factory, shape):
    groups = {g: {k: random_bits(*spec) for k, spec in keys.items()} for g, keys in shape.items()}
    path = tmp_path_factory.mktemp("c") / "c.safetensors"
    checkpoint.save(path, groups, {})
    same(checkpoint.load(path).groups, groups)


@pytest.mark.parametrize("name", ["", "/", "a/b", "%2F", "__metadata__", "θ", "\ud800", "\x00", 'quote"'])
def test_a_name_may_be_any_string(tmp_path, name):
    groups = {name: {name: torch.tensor([1.0])}}
    checkpoint.save(tmp_path / "c", groups, {})
    same(checkpoint.load(tmp_path / "c").groups, groups)


def test_views_shared_storage_gradients_and_conjugates_are_saved_by_value(tmp_path):
    x = torch.randn(4, 6)
    z = torch.randn(3, dtype=torch.complex64)
    groups = {
        "g": {"t": x.T, "s": x[::2, 1:], "x": x, "p": torch.nn.Parameter(x), "conj": z.conj(), "im": z.conj().imag}
    }
    checkpoint.save(tmp_path / "c", groups, {})
    found = checkpoint.load(tmp_path / "c").groups["g"]
    for key, tensor in groups["g"].items():
        assert torch.equal(found[key], tensor.detach()), key


def test_numbers_beside_the_tensors_come_back_exactly(tmp_path):
    meta = {"tiny": 5e-324, "third": 1 / 3, "inf": math.inf, "big": 2**70, "none": None, "nested": [{"a": [1]}]}
    checkpoint.save(tmp_path / "c", {}, meta | {"nan": math.nan})
    found = checkpoint.load(tmp_path / "c").meta
    assert math.isnan(found.pop("nan"))
    assert found == meta


def test_other_programs_can_read_the_file(tmp_path):
    checkpoint.save(tmp_path / "c", GROUPS, META)
    with safetensors.safe_open(tmp_path / "c", "pt") as file:
        assert set(file.keys()) == {"state/x", "state/scale", "memory/segments", "memory/flag"}
        assert torch.equal(file.get_tensor("state/x"), GROUPS["state"]["x"])
        assert json.loads(file.metadata()["meta"]) == META


def test_a_changed_byte_is_noticed_wherever_it_is(tmp_path):
    path = tmp_path / "c"
    checkpoint.save(path, GROUPS, META)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(RunError, match=r"c (is|has)"):
            checkpoint.load(path)
    path.write_bytes(whole)
    same(checkpoint.load(path).groups, GROUPS)


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_any_damage_is_noticed(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("c") / "c"
    checkpoint.save(path, GROUPS, META)
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=40))
    damaged = whole[:start] + patch + whole[start + len(patch) :]
    path.write_bytes(damaged)
    if damaged == whole:
        same(checkpoint.load(path).groups, GROUPS)
    else:
        with pytest.raises(RunError):
            checkpoint.load(path)


def test_a_file_cut_off_anywhere_or_with_something_behind_it_is_noticed(tmp_path):
    path = tmp_path / "c"
    checkpoint.save(path, GROUPS, META)
    whole = path.read_bytes()
    for content in [*(whole[:length] for length in range(len(whole))), whole + b"\0"]:
        path.write_bytes(content)
        with pytest.raises(RunError, match=r"cut off|unreadable"):
            checkpoint.load(path)


def test_a_foreign_file_is_refused_and_named(tmp_path):
    path = tmp_path / "c"
    safetensors.torch.save_file({"x": torch.ones(2)}, path)
    with pytest.raises(RunError, match="not written by fedloom"):
        checkpoint.load(path)
    path.write_text("just a text, longer than eight bytes")
    with pytest.raises(RunError, match="no safetensors file"):
        checkpoint.load(path)
    header = json.dumps({"__metadata__": {"kind": "fedloom.memory", "version": "1", "checksum": ""}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(RunError, match=r"is a 'fedloom.memory' file where a 'fedloom.checkpoint' file is needed"):
        checkpoint.load(path)
    header = json.dumps({"__metadata__": {"kind": "fedloom.checkpoint", "version": "9", "checksum": ""}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(RunError, match="format version 9"):
        checkpoint.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RunError, match=r"nowhere\.safetensors is missing"):
        checkpoint.load(tmp_path / "nowhere.safetensors")


def test_a_folder_that_is_gone_is_an_error_that_names_it(tmp_path):
    with pytest.raises(RunError, match=r"gone/c cannot be used: No such file"):
        checkpoint.save(tmp_path / "gone" / "c", GROUPS, META)


def save_rounds(folder, *rounds):
    for t in rounds:
        checkpoint.save_latest(folder, {"state": {"x": torch.full((3,), float(t))}}, {"round": t})


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_the_newest_and_the_one_before_are_kept(tmp_path):
    assert checkpoint.load_latest(tmp_path) is None
    save_rounds(tmp_path, 1, 2, 3)
    assert sorted(os.listdir(tmp_path)) == [checkpoint.PREVIOUS, checkpoint.NEWEST]
    assert checkpoint.load(tmp_path / checkpoint.PREVIOUS).meta == {"round": 2}
    found = checkpoint.load_latest(tmp_path)
    assert (found.meta, found.note) == ({"round": 3}, "")


def test_a_damaged_newest_checkpoint_is_set_aside_and_the_one_before_is_used(tmp_path):
    save_rounds(tmp_path, 1, 2)
    damage(tmp_path / checkpoint.NEWEST)
    found = checkpoint.load_latest(tmp_path)
    assert found.meta == {"round": 1}
    assert "checksum does not fit" in found.note
    assert checkpoint.DAMAGED in found.note
    assert "goes on from checkpoint.previous.safetensors" in found.note
    assert (tmp_path / checkpoint.DAMAGED).exists()


def test_after_a_recovery_the_good_checkpoint_is_not_pushed_out_by_the_damaged_one(tmp_path):
    save_rounds(tmp_path, 1, 2)
    damage(tmp_path / checkpoint.NEWEST)
    checkpoint.load_latest(tmp_path)
    save_rounds(tmp_path, 2)
    damage(tmp_path / checkpoint.NEWEST)
    assert checkpoint.load_latest(tmp_path).meta == {"round": 1}


def test_a_kill_between_the_two_renamings_costs_one_checkpoint(tmp_path):
    save_rounds(tmp_path, 1, 2)
    os.replace(tmp_path / checkpoint.NEWEST, tmp_path / checkpoint.NEXT)
    found = checkpoint.load_latest(tmp_path)
    assert found.meta == {"round": 1}
    assert "is missing" in found.note


def test_when_no_checkpoint_is_whole_the_error_names_both(tmp_path):
    save_rounds(tmp_path, 1, 2)
    damage(tmp_path / checkpoint.NEWEST)
    damage(tmp_path / checkpoint.PREVIOUS)
    with pytest.raises(
        RunError, match=r"checkpoint\.safetensors is damaged.*checkpoint\.previous\.safetensors is damaged"
    ):
        checkpoint.load_latest(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [checkpoint.PREVIOUS, checkpoint.NEWEST]
