"""Randomness by counter: every number is a hash of (seed, round, client, purpose, position).

No generator object is ever kept, so a number does not depend on who asked before: not on the executor, the number
of workers, the order of arrival or the size of a stack. The hash is SplitMix64's finaliser (Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", OOPSLA 2014), applied once per key; it is vectorised over clients.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

U64 = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_A, _B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Torch's own generator, from which modules draw, at this seed; then it is where it was.

    ``torch.manual_seed`` would also keep a call, with its stack trace, for every kind of device that is not in use:
    that takes a hundred times as long, and memory that is never given back.
    """
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed & _MASK >> 1)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def _mix_int(z: int) -> int:
    z = (z + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _A) & _MASK
    z = ((z ^ (z >> 27)) * _B) & _MASK
    return z ^ (z >> 31)


def _mix(z: U64) -> U64:
    """SplitMix64's finaliser on an array that it may overwrite."""
    z += np.uint64(_GOLDEN)
    z ^= z >> np.uint64(30)
    z *= np.uint64(_A)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_B)
    z ^= z >> np.uint64(31)
    return z


@dataclass(frozen=True)
class Draw:
    """All random numbers of one round: ``draw.uniform("batches", clients, 10)`` and so on."""

    seed: int
    round: int = 0

    def key(self, purpose: str) -> int:
        """One 64-bit number for (seed, round, purpose): the seed of whatever needs a single one."""
        word = _mix_int(self.seed & _MASK)
        word = _mix_int(word ^ (self.round & _MASK))
        return _mix_int(word ^ zlib.crc32(purpose.encode()))

    def words(self, purpose: str, clients: npt.ArrayLike, count: int, lane: npt.ArrayLike = 0) -> U64:
        """``count`` 64-bit words for each client: shape (*clients.shape, count).

        ``lane`` tells apart several draws of one purpose in one round (the epoch, say); it may differ by client.
        """
        ids = np.array(clients, dtype=np.uint64, ndmin=1)
        streams = _mix(ids ^ np.uint64(self.key(purpose)))
        streams = _mix(streams ^ np.asarray(lane, dtype=np.uint64))
        words = _mix(streams[..., None] ^ (np.arange(count, dtype=np.uint64) * np.uint64(_GOLDEN)))
        return words[0] if np.ndim(clients) == 0 else words

    def uniform(
        self, purpose: str, clients: npt.ArrayLike, count: int, lane: npt.ArrayLike = 0
    ) -> npt.NDArray[np.float64]:
        """Uniform numbers in [0, 1) for each client: shape (*clients.shape, count); ``lane`` as for ``words``."""
        return (self.words(purpose, clients, count, lane) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, purpose: str, clients: npt.ArrayLike, count: int) -> npt.NDArray[np.float64]:
        """Standard normal numbers for each client (Box and Muller): shape (*clients.shape, count)."""
        pairs = self.uniform(purpose, clients, 2 * count)
        radius = np.sqrt(-2.0 * np.log1p(-pairs[..., :count]))
        return radius * np.cos(2.0 * np.pi * pairs[..., count:])

    def generator(self, purpose: str) -> np.random.Generator:
        """A NumPy generator for set-up work that has no client axis (partitions, synthetic data)."""
        return np.random.Generator(np.random.Philox(key=self.key(purpose)))
