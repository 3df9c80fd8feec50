"""How the clients of a cell fare beside those of another row: by how much they gain, and how many of them lose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedloom.report.pairs import Pair
from fedloom.reproduce.curve import repeats
from fedloom.reproduce.plan import Cell
from fedloom.storage.folder import SUMMARY


def paired_with(cell: Cell, others: Sequence[Cell], folder: Path) -> dict[str, dict[str, Any]]:
    """By the other's row: the mean gain of the clients, half of its interval at 95 %, and how many lose, of how many.

    A client's gain is the mean over the seeds that both have. Only the main evaluation has values of single clients; a
    cell that reads the runs of others, by another measure, has none of its own.
    """
    told: dict[str, dict[str, Any]] = {}
    metric = cell.measure.metric
    mine = repeats(cell, folder, (SUMMARY,)) if _of_its_own(cell) else None
    for other in others:
        theirs = repeats(other, folder, (SUMMARY,)) if other.row != cell.row and _of_its_own(other) else None
        if mine is None or theirs is None:
            continue
        pair = Pair.of(mine, theirs, metric)
        over = pair.intervals.get("client")
        if over is not None:
            told[other.row] = {
                "gain": cell.measure.factor * over.mean,
                "half": None if over.half is None else cell.measure.factor * over.half,
                "lose": len(pair.worse),
                "of": over.count,
            }
    return told


def _of_its_own(cell: Cell) -> bool:
    return cell.home == (cell.row, cell.column) and cell.measure.reads == "value" and "/" not in cell.measure.metric
