"""A result as tables of words, which the terminal, the page and the documentation show each in its way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedloom.report.words import MISSING, counted, plain, plural, sized, spread_text, text, timed
from fedloom.reproduce.outcome import NONE_REACHED, improvement
from fedloom.reproduce.plan import point_text

if TYPE_CHECKING:
    from rich.table import Table

Record = dict[str, Any]
"""What result.json holds; a cell is such a record too."""


@dataclass(frozen=True)
class Word:
    """What stands in one place of a table: a line, lines below it that explain it, and whether it is the best."""

    line: str
    below: tuple[str, ...] = ()
    best: bool = False


@dataclass(frozen=True)
class Grid:
    """One table: rows and columns are those of the experiment."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    body: tuple[tuple[Word, ...], ...]


def grids(record: Record) -> list[Grid]:
    """The values (beside the published ones), the way to the targets, and what was found by tuning."""
    found = [_improved(_grid(record, _measure_text(record), lambda cell: _value(cell, record)), record)]
    if any(cell["target"] for cell in record["cells"]):
        found.append(_grid(record, "Rounds and bytes (both ways) to the target", _target))
    found += [_beside(record, row) for row in record.get("paired", ()) if _put_beside(record, row)]
    if any(cell["tuned"] for cell in record["cells"]):
        found.append(_grid(record, "Found by tuning", lambda cell: Word(_tuned(cell))))
    return found


def notes(record: Record) -> list[str]:
    """What a reader must know about single cells: failures, divergence, values that cannot be compared and why."""
    found = [f"{column}: {why}" for column, why in record.get("unavailable", {}).items()]
    whole = _of_whole_columns(record)
    found += [f"{column}: {why}" for column, why in whole.items()]
    for cell in record["cells"]:
        if cell["error"]:
            found.append(f"{cell['title']} failed: {cell['error']}")
        if cell["why"] and cell["column"] not in whole:
            found.append(f"{cell['title']}: {cell['why']}")
        if cell["at_end"]:
            found.append(f"{cell['title']}: {_tuned(cell)} is an end of its grid, so a wider one might be better")
        if cell["published"] and cell["published"]["note"]:
            found.append(f"{cell['title']}, published: {cell['published']['note']}")
        if cell.get("stale"):
            found.append(f"{cell['title']} was recorded with settings that the file has no longer")
    return found + [
        f"{one['name']} / {column}, published: {published['note']}"
        for one in record.get("improvements", [])
        for column, published in one["published"].items()
        if published["note"]
    ]


def _of_whole_columns(record: Record) -> dict[str, str]:
    """Why a column cannot be compared, where it is the same for all that was published of several rows and run."""
    reasons: dict[str, list[str]] = {}
    for cell in record["cells"]:
        if cell["why"] or (cell["published"] and cell["values"]):
            reasons.setdefault(cell["column"], []).append(cell["why"])
    return {column: whys[0] for column, whys in reasons.items() if len(whys) > 1 and len(set(whys)) == 1 and whys[0]}


def progress(record: Record) -> str:
    """How far it is, in a line; the runs that several cells read count once."""
    readers = {
        key: {table["name"] for table in record["settings"].get(key, ()) if "runs_of" in table}
        for key in ("row", "column")
    }
    cells = [cell for cell in record["cells"] if not any(cell[key] in names for key, names in readers.items())]
    done, wanted = (sum(cell[key] for cell in cells) for key in ("done", "wanted"))
    return f"{done:,} of {plural(wanted, 'run')} done"


def rich_grid(grid: Grid) -> Table:
    """A table for a terminal."""
    from rich.text import Text

    table = _table(("", *grid.columns))
    for name, line in zip(grid.rows, grid.body, strict=True):
        words = [
            Text.assemble((word.line, "bold green" if word.best else ""), *((f"\n{low}", "dim") for low in word.below))
            for word in line
        ]
        table.add_row(Text(name), *words)
    return table


def _grid(record: Record, title: str, word: Callable[[Record], Word]) -> Grid:
    cells = {(cell["row"], cell["column"]): word(cell) for cell in record["cells"]}
    body = tuple(tuple(cells.get((row, name), Word(MISSING)) for name in record["columns"]) for row in record["rows"])
    return Grid(title, tuple(record["columns"]), tuple(record["rows"]), body)


def _improved(grid: Grid, record: Record) -> Grid:
    """A table of values with the improvements below its rows."""
    found = record.get("improvements", [])
    body = tuple(tuple(_percents(one, column, record) for column in grid.columns) for one in found)
    return replace(grid, rows=grid.rows + tuple(one["name"] for one in found), body=grid.body + body)


def _percents(one: Record, column: str, record: Record) -> Word:
    """By how much a row is better than others in a column: ours, and as it was published or follows from that."""
    cells = {cell["row"]: cell for cell in record["cells"] if cell["column"] == column}
    if not {one["of"], *one["over"]} <= cells.keys():
        return Word(MISSING)
    compared = [cells[row] for row in (one["of"], *one["over"])]

    def percent(values: list[float | None]) -> float | None:
        return improvement(values[0], values[1:], _better(compared[0], record) == "up")

    ours = percent([cell["mean"] for cell in compared])
    theirs = percent([cell["published"] and cell["published"]["value"] for cell in compared])
    theirs = one["published"].get(column, {"value": theirs})["value"]
    said = () if theirs is None else (f"published {theirs:.2f} %",)
    return Word(MISSING if ours is None else f"{ours:.2f} %", said)


def _measure_text(record: Record) -> str:
    measure, end = record["measure"], "mean ± standard deviation over repeats"
    found = [cell.get("measure", measure) for cell in record["cells"]]
    reads = {one.get("reads", "value") for one in found}
    if reads != {"value"}:
        return f"{' or '.join(sorted(reads)).capitalize()} to the target; {end}"
    if len({one["metric"].rpartition("/")[2] for one in found}) > 1:
        return end.capitalize()
    metric = measure["metric"] if len({one["metric"] for one in found}) == 1 else measure["metric"].rpartition("/")[2]
    unit = "" if measure["scale"] == "plain" else f" in {measure['scale']}"
    last = f", mean of the last {measure['over']} evaluations" if measure["over"] > 1 else ""
    return f"{metric.capitalize()}{unit}{last}; {end}"


def _value(cell: Record, record: Record) -> Word:
    below = _below(cell, record["repeats"])
    return Word(mean_text(cell), tuple(below), cell["mean"] is not None and cell["mean"] == _best(cell, record))


def mean_text(cell: Record) -> str:
    """A cell's mean and spread, or why it has none."""
    if cell["mean"] is None:
        if (cell["values"] and not cell["diverged"]) or cell["why"] == NONE_REACHED:
            return "not reached"
        return "failed" if cell["error"] else "diverged" if cell["diverged"] or cell["why"] else MISSING
    spread = f" {spread_text(plain, cell['mean'], cell['std'])}" if cell["std"] is not None else ""
    return text(plain, cell["mean"]) + spread


def _below(cell: Record, repeats: int) -> list[str]:
    found = []
    published, seeds = cell["published"], len(cell["values"])
    if published:
        spread = "" if published["std"] is None else f" {spread_text(plain, published['value'], published['std'])}"
        found.append(f"published {text(plain, published['value'])}{spread}")
        found += [cell["verdict"]] if seeds else []
    if cell["diverged"]:
        found.append(f"{cell['diverged']} of {seeds} diverged")
    reached = sum(value is not None and math.isfinite(value) for value in cell["values"].values())
    if 0 < reached < seeds - cell["diverged"]:
        found.append(f"{reached} of {seeds} reached it")
    if seeds and seeds != repeats:
        found.append(plural(seeds, "repeat"))
    return found


def _best(cell: Record, record: Record) -> float | None:
    means = [one["mean"] for one in record["cells"] if one["column"] == cell["column"] and one["mean"] is not None]
    return None if len(means) < 2 else max(means) if _better(cell, record) == "up" else min(means)


def _better(cell: Record, record: Record) -> str:
    """Which way a cell's values get better."""
    return str(cell.get("measure", {}).get("better") or record["measure"]["better"])


def _target(cell: Record) -> Word:
    target = cell["target"]
    if not target or not target["of"]:
        return Word(MISSING)
    some = f" ({target['reached']} of {target['of']})" if target["reached"] < target["of"] else ""
    if not target["reached"]:
        return Word(f"{target['value']:g} not reached")
    clocks = [text(counted, target["rounds"]) + " rounds", text(sized, target["bytes"])]
    clocks += [text(timed, target["seconds"])] if target["seconds"] else []
    return Word(f"{target['value']:g}: {', '.join(clocks)}{some}")


def _put_beside(record: Record, row: str) -> bool:
    return any(row in cell.get("paired", {}) for cell in record["cells"])


def _beside(record: Record, row: str) -> Grid:
    """The gains over a row, in the columns that have any."""

    def word(cell: Record) -> Word:
        told = cell.get("paired", {}).get(row)
        if not told:
            return Word(MISSING)
        sure = "" if told["half"] is None else f" ± {told['half']:.2f}"
        return Word(f"{told['gain']:+.2f}{sure}, {told['lose']} of {told['of']} lose".replace("-", "−"))

    whole = _grid(
        record, f"Clients beside {row}: mean gain with its 95 % interval over clients, and how many lose", word
    )
    kept = [at for at in range(len(whole.columns)) if any(line[at].line != MISSING for line in whole.body)]
    rows = [at for at, line in enumerate(whole.body) if any(line[at].line != MISSING for at in kept)]
    return Grid(
        whole.title,
        tuple(whole.columns[at] for at in kept),
        tuple(whole.rows[at] for at in rows),
        tuple(tuple(whole.body[line][at] for at in kept) for line in rows),
    )


def _tuned(cell: Record) -> str:
    return point_text(cell["tuned"]) if cell["tuned"] else MISSING


def listing(rows: Sequence[tuple[str, ...]]) -> Table:
    """What there is to reproduce, for a terminal."""
    table = _table(("Name", "Title", "Cells", "Published", "Recorded"))
    for row in rows:
        table.add_row(*row)
    return table


def _table(titles: Sequence[str]) -> Table:
    """The first column, which has the names, is never wrapped."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, title in enumerate(titles):
        table.add_column(title, no_wrap=at == 0)
    return table
