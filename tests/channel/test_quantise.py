from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedloom.channel import Channel, Quantise, payload, serialise
from fedloom.channel.quantise import _pack, _unpack
from fedloom.federation.randomness import Draw
from ways import up

BITS = st.integers(1, 16)


def values(clients: int, n: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(clients, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@given(bits=BITS, clients=st.integers(1, 3), count=st.integers(0, 20), seed=st.integers(0, 99))
def test_packed_levels_come_back(bits: int, clients: int, count: int, seed: int) -> None:
    levels = torch.randint(2**bits, (clients, count), generator=torch.Generator().manual_seed(seed))
    packed = _pack(levels.to(torch.int32), bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (clients, -(-count * bits // 8))
    assert torch.equal(_unpack(packed, bits, count).long(), levels)


@given(bits=BITS, dtype=st.sampled_from([torch.float32, torch.float64]), seed=st.integers(0, 99))
def test_the_error_is_below_one_step(bits: int, dtype: torch.dtype, seed: int) -> None:
    v = values(4, 30, dtype, seed)
    (decoded, _) = up(Channel([Quantise(bits)]), {"v": v}, np.arange(4), Draw(seed))
    step = 2 * v.abs().amax(1, keepdim=True) / (2**bits - 1)
    room = 1 + 1e-9 if dtype == torch.float64 else 1 + 0.01
    assert ((decoded["v"] - v).abs() <= step * room).all()
    assert decoded["v"].dtype == dtype


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_quantisation_has_no_bias(bits: int) -> None:
    v = values(1, 50)
    draws = 4000
    (decoded, _) = up(Channel([Quantise(bits)]), {"v": v.expand(draws, -1)}, np.arange(draws), Draw(1))
    errors = decoded["v"] - v
    step = 2 * float(v.abs().max()) / (2**bits - 1)
    assert float((errors.mean(0).abs() / (step / 2 / draws**0.5)).max()) < 5  # no deviation is above Δ/2
    assert float(errors.mean().abs()) < 5 * step / 2 / (draws * 50) ** 0.5


def test_the_ends_of_the_range_are_exact_and_so_is_zero_alone() -> None:
    v = torch.tensor([[3.0, -3.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    (decoded, _) = up(Channel([Quantise(2)]), {"v": v}, np.arange(2), Draw(0))
    assert decoded["v"][0, :2].tolist() == [3.0, -3.0]
    assert decoded["v"][1].tolist() == [0.0, 0.0, 0.0]


@given(
    bits=BITS,
    shapes=st.dictionaries(
        st.sampled_from(["dx", "dc", "x.range", "y.shape"]), st.lists(st.integers(0, 3), max_size=3), max_size=3
    ),
    clients=st.integers(1, 3),
)
def test_the_bytes_are_those_of_what_travels(bits: int, shapes: dict[str, list[int]], clients: int) -> None:
    message = {key: torch.randn(clients, *shape) for key, shape in shapes.items()}
    transform, ids, draw = Quantise(bits), np.arange(clients), Draw(3)
    decoded, size = up(Channel([transform]), message, ids, draw)
    travels, _ = transform.encode(message, {}, ids, draw)
    assert size == len(serialise({key: value[0] for key, value in travels.items()}))
    assert {key: value.shape for key, value in decoded.items()} == {key: v.shape for key, v in message.items()}


def test_eight_bits_are_a_quarter_of_the_bytes() -> None:
    message = {"dx": torch.randn(2, 10_000)}
    _, size = up(Channel([Quantise(8)]), message, np.arange(2), Draw(0))
    assert size == pytest.approx(payload({}, message) / 4, rel=0.03)
    assert up(Channel(), message, np.arange(2), Draw(0))[1] == payload({}, message)


def test_whole_numbers_pass_as_they_are_whatever_their_names() -> None:
    message = {"count": torch.tensor([3, 5]), "dx": torch.ones(2, 3), "image.shape": torch.tensor([[8, 8], [9, 9]])}
    decoded, _ = up(Channel([Quantise(1)]), message, np.arange(2), Draw(0))
    assert torch.equal(decoded["count"], message["count"])
    assert torch.equal(decoded["image.shape"], message["image.shape"])
    assert decoded.keys() == message.keys()


def test_a_clients_noise_does_not_depend_on_its_stack() -> None:
    v, channel, draw = values(5, 9), Channel([Quantise(3)]), Draw(8, 2)
    whole, _ = up(channel, {"v": v}, np.arange(5), draw)
    some, _ = up(channel, {"v": v[[3, 1]]}, np.array([3, 1]), draw)
    assert torch.equal(some["v"], whole["v"][[3, 1]])
    later, _ = up(channel, {"v": v}, np.arange(5), Draw(8, 3))
    assert not torch.equal(later["v"], whole["v"])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_does_not_become_finite(value: float) -> None:
    v = values(3, 4)
    v[1, 2] = value
    (decoded, _) = up(Channel([Quantise(8)]), {"v": v}, np.arange(3), Draw(0))
    assert torch.isfinite(decoded["v"]).all(1).tolist() == [True, False, True]


def test_transforms_are_undone_in_reverse_order() -> None:
    v = values(2, 6)
    (decoded, size) = up(Channel([Quantise(16), Quantise(16)]), {"v": v}, np.arange(2), Draw(0))
    torch.testing.assert_close(decoded["v"], v, rtol=0, atol=1e-3)
    assert size > 0
