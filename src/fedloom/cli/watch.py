"""``fedloom watch``: a run that is going on elsewhere, in this terminal."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.cli.display import make_console, make_table, plain_text, say, seconds_text
from fedloom.cli.guard import Halt
from fedloom.errors import RunError

if TYPE_CHECKING:
    from rich.console import Console

    from fedloom.report.live import Look, Watched

_BARS = "▁▂▃▄▅▆▇█"
_WIDE = 40
"""Letters of a sparkline."""


def watch(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="A run's folder, or one that holds several; the newest below runs/."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each look that shows something new.")] = (
        False
    ),
    every: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between looks.")] = 1.0,
) -> None:
    """Follow a run that goes on elsewhere, until it ends: rounds, pace, time left, metrics. Changes nothing in it."""
    from fedloom.report.live import Watched, newest

    chosen = path or newest(Path("runs"))
    if chosen is None:
        raise RunError("there is no run below runs/ yet: name the folder of one, which may begin later")
    if chosen.exists() and not chosen.is_dir():
        raise RunError(f"{chosen} is a file; give the folder of a run or of a comparison")
    if once and not chosen.is_dir():
        raise RunError(f"there is no folder {chosen}; without --once, `fedloom watch` waits until the run begins")
    console, watched = make_console(), Watched(chosen)
    try:
        if as_json:
            _lines(watched, once, every, lambda looks: _told_json(looks, watched.single))
        elif once or not console.is_terminal:
            _lines(watched, once, every, lambda looks: _told(console, looks, watched.single, once))
        else:
            _live(console, watched, every)
    except KeyboardInterrupt as stop:
        raise Halt("no longer watched; the run itself goes on") from stop


def _lines(watched: Watched, once: bool, every: float, tell: Any) -> None:
    """Look after look, each that shows something new."""
    before: list[Any] = []
    while True:
        looks = watched.looks()
        now = [(look.state, look.round, look.note) for look in looks]
        if now != before:
            tell(looks)
            before = now
        if once or watched.over(looks):
            return
        time.sleep(every)


def _live(console: Console, watched: Watched, every: float) -> None:
    """On a terminal: one picture that is drawn anew."""
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        while True:
            looks = watched.looks()
            live.update(picture(looks, watched.single), refresh=True)
            if watched.over(looks):
                return
            time.sleep(every)


def _told_json(looks: list[Look], single: bool) -> None:
    from fedloom.report.live import as_line

    print(as_line(looks, single), flush=True)


def _told(console: Console, looks: list[Look], single: bool, once: bool) -> None:
    """Where there is no terminal: a line for each run that shows something new; at one look, the whole picture."""
    if once:
        console.print(picture(looks, single))
        return
    if single:
        say(console, "  ".join(_words(looks[0])))
        return
    done = sum(look.state == "done" for look in looks)
    now = [f"{_name(look, looks)}: {'  '.join(_words(look))}" for look in looks if look.state == "running"]
    say(console, "; ".join([f"{done} of {len(looks)} runs done", *now]))


def picture(looks: list[Look], single: bool) -> Any:
    """What is known, as a few lines or as a table."""
    return _one(looks[0]) if single else _table(looks)


def _one(look: Look) -> Any:
    from rich.console import Group
    from rich.text import Text

    from fedloom.report.words import lower_first, name_text

    parts: list[Any] = [Text(f"{look.label}  {look.folder}", style="bold", overflow="fold"), Text(_progress(look))]
    if look.rounds:
        done = _WIDE * min(look.round or 0, look.rounds) // look.rounds
        parts.append(Text("█" * done + "░" * (_WIDE - done)))
    for at, (name, value) in enumerate(look.metrics.items()):
        line = f"{lower_first(name_text(name))} {plain_text(value)}"
        parts.append(Text(f"{line}  {sparkline(look.curve)}" if at == 0 else line))
    if words := _clocks(look):
        parts.append(Text("  ".join(words)))
    if look.failures:
        parts.append(Text(f"{look.failures:,} failures of clients", style="yellow"))
    if look.note:
        parts.append(Text(look.note, style="yellow" if look.state == "stopped" else ""))
    return Group(*parts)


def _table(looks: list[Look]) -> Any:
    from rich.text import Text

    from fedloom.report.words import name_text

    metric = next((next(iter(look.metrics)) for look in looks if look.metrics), None)
    table = make_table("Run", "State", "Round", name_text(metric) if metric else "Metric", "Along the run", "Left")
    for look in looks:
        rounds = "–" if look.round is None else f"{look.round}" + (f"/{look.rounds}" if look.rounds else "")
        value = "–" if metric is None or metric not in look.metrics else plain_text(look.metrics[metric])
        left = "" if look.left is None else seconds_text(look.left)
        state = f"{look.state} ({look.note})" if look.state == "running" and look.note else look.state
        table.add_row(Text(_name(look, looks)), Text(state), rounds, value, sparkline(look.curve, 16), left)
    done = sum(look.state == "done" for look in looks)
    table.caption = f"{done} of {len(looks)} runs done"
    table.caption_justify = "left"
    return table


def _name(look: Look, looks: list[Look]) -> str:
    """The folder below that which all have in common."""
    common = os.path.commonpath([other.folder for other in looks]) if len(looks) > 1 else look.folder.parent
    return str(look.folder.relative_to(common))


def _progress(look: Look) -> str:
    if look.round is None:
        return {"not begun": "has not begun yet"}.get(look.state, look.state)
    rounds = f"round {look.round:,}" + (f" of {look.rounds:,}" if look.rounds else "")
    pace = "" if look.pace is None or look.state != "running" else f"{_rate(look.pace)}"
    left = "" if look.left is None else f"{seconds_text(look.left)} left"
    return "  ".join(word for word in (look.state, rounds, pace, left) if word)


def _words(look: Look) -> list[str]:
    metrics = [f"{name} {plain_text(value)}" for name, value in list(look.metrics.items())[:1]]
    failures = [f"{look.failures:,} failures of clients"] if look.failures else []
    return [_progress(look), *metrics, *failures, *([look.note] if look.note else [])]


def _clocks(look: Look) -> list[str]:
    from fedloom.report.words import sized, text

    told, found = look.clocks, []
    if told.get("simulated_seconds"):
        found.append(f"simulated {seconds_text(told['simulated_seconds'])}")
    for key, words in (("bytes_up", "up"), ("bytes_down", "down")):
        if key in told:
            found.append(f"{text(sized, told[key])} {words}")
    if "wall_seconds" in told:
        found.append(f"wall {seconds_text(told['wall_seconds'])}")
    return found


def sparkline(values: list[float], wide: int = _WIDE) -> str:
    """The values as small bars, the mean of several in each where there are many; a dot for what is no number."""
    if not values:
        return ""
    wide = min(wide, len(values))
    parts = [values[at * len(values) // wide : (at + 1) * len(values) // wide] for at in range(wide)]
    means = [sum(part) / len(part) for part in parts]
    known = [mean for mean in means if math.isfinite(mean)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    span = high / 2 - low / 2 or 1.0  # halves, for the whole may be more than a number can hold
    return "".join(
        _BARS[min(7, int((mean / 2 - low / 2) / span * 8))] if math.isfinite(mean) else "·" for mean in means
    )


def _rate(pace: float) -> str:
    """Rounds a second, or the seconds of a round."""
    return f"{pace:.3g} rounds a second" if pace >= 1 else f"{seconds_text(1 / pace)} a round"
