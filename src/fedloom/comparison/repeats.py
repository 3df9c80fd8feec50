"""What is done with each method of a comparison: a run for each seed, and for each fold where these are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

Key = tuple[str, int] | tuple[str, int, int]
"""A run of a comparison: the label of its method, the seed and, of a cross-validation, the fold."""


@dataclass(frozen=True)
class Repeat:
    """One of the repeats; equal ones of two methods have the same rows to learn from and to be tested on."""

    seed: int
    fold: int | None = None
    """Which of the folds is tested, from 1; none: rows are split once."""
    folds: int = 0
    """How many there are."""

    def key(self, label: str) -> Key:
        """The run of the method with this label."""
        return (label, self.seed) if self.fold is None else (label, self.seed, self.fold)

    @property
    def folder(self) -> Path:
        """Where its run belongs, in the folder of the method."""
        seed = Path(f"seed-{self.seed}")
        return seed if self.fold is None else seed / f"fold-{self.fold}"

    def __str__(self) -> str:
        return f"seed {self.seed}" + ("" if self.fold is None else f", fold {self.fold} of {self.folds}")
