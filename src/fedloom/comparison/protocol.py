"""One protocol in one comparison: all methods are judged on the same clients and rows, each by its own model.

A method whose product is adapted is judged on the rows that it was not fitted to, which are half of the others' rows:
so where one of the methods adapts, all are judged on that half.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, cast

from fedloom.engine.evaluation import Evaluation
from fedloom.errors import ConfigError
from fedloom.methods import Method

Judge = Literal["alike", "own"]
"""All on the same rows, or each method on the rows on which it would be judged alone."""

SAME_ROWS = (
    "the table has one method with several settings, all judged on the same rows: whoever takes the best of them "
    "chooses by the rows that judge, and it looks better than it is; choose with --validation 0.2 "
    "--set evaluation.split=validation, then judge the chosen one on the test rows"
)


def checked_judge(judge: str) -> Judge:
    """The word, if it is one of the two."""
    if judge in ("alike", "own"):
        return cast("Judge", judge)
    raise ConfigError(f"protocol = {judge!r} cannot be; choose 'alike' (all on the same rows) or 'own'")


def common_splits(entries: Iterable[tuple[Method, Sequence[Evaluation]]]) -> list[str | None]:
    """For each evaluation the rows on which all can be judged; None where they are judged on the same ones anyway, or
    where the user has named them."""
    each = [[(one, one.resolved(method).split) for one in evaluations] for method, evaluations in entries]
    found: list[str | None] = []
    for same in zip(*each, strict=False):
        free = {split for one, split in same if one.split is None}
        found.append(next(iter(free - {"test"})) if len(free) > 1 else None)
    return found


def judged_alike(evaluations: Sequence[Evaluation], splits: Sequence[str | None]) -> list[Evaluation]:
    """The evaluations on the common rows."""
    common = [*splits, *[None] * (len(evaluations) - len(splits))]
    return [
        replace(one, split=split) if split is not None and one.split is None else one
        for one, split in zip(evaluations, common, strict=True)
    ]
