"""How the report says numbers and names: units that people read, one way for table, cards, charts and captions."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MISSING = "–"

_TIMES = (("d", "days", 86400.0, 172800.0), ("h", "hours", 3600.0, 7200.0), ("min", "minutes", 60.0, 180.0))
"""Units of time: after a number, alone, in seconds, and from how many seconds on they suit."""
_WORDS = ("balanced-accuracy", "average-precision", "log-loss", "calibration-error")
_NAMES = {"f1": "F1", "r2": "R²", "roc-auc": "ROC-AUC"} | {name: name.replace("-", " ") for name in _WORDS}
_NAMES |= {name: name.upper() for name in ("mae", "mse", "rmse", "smape", "mape", "auc")}


def name_text(key: str) -> str:
    """A key of the history as words: ``balanced_accuracy`` → "Balanced accuracy", ``new/mae:CO`` → "MAE: CO (new)"."""
    evaluation, _, measured = key.rpartition("/")
    metric, _, column = measured.partition(":")
    words = [_NAMES.get(word.lower(), word) for word in metric.replace("_", " ").split()]
    if words and words[0].islower():
        words[0] = words[0].capitalize()
    text = (" ".join(words) or metric) + (f": {column}" if column else "")
    return f"{text} ({evaluation})" if evaluation else text


@dataclass(frozen=True)
class Scale:
    """How numbers of one size are written: divided by ``size``, with decimals (None: as 1.23e-05) and a unit."""

    size: float = 1.0
    decimals: int | None = 0
    unit: str = ""

    def text(self, value: float, *, unit: bool = True) -> str:
        """The number; a value too small for the decimals is said to be below the last of them."""
        scaled = value / self.size
        if self.decimals is None:
            digits = f"{scaled:.3g}"
        elif scaled != 0 and round(scaled, self.decimals) == 0:
            digits = f"<{10.0**-self.decimals:.{self.decimals}f}"
        else:
            digits = f"{scaled:,.{self.decimals}f}"
        return f"{digits} {self.unit}" if unit and self.unit else digits


Kind = Callable[[float], Scale]
"""A kind of quantity chooses the scale for a value."""


def plain(value: float) -> Scale:
    """A metric, with about four digits that matter."""
    size = abs(value)
    if size and not 0.001 <= size < 1e5:
        return Scale(decimals=None)
    return Scale(decimals=3 if size < 10 else 2 if size < 100 else 1)


def counted(value: float) -> Scale:
    """A count: 12,345 in full, above a million 1.23 M."""
    for unit, size in (("G", 1e9), ("M", 1e6)):
        if abs(value) >= size:
            return Scale(size, _three_digits(value / size), unit)
    return Scale(decimals=0 if value == int(value) or abs(value) >= 100 else 1)


def shared(value: float) -> Scale:
    """A share in percent."""
    return Scale(0.01, 0, "%")


def sized(value: float) -> Scale:
    """Bytes in decimal units: 1 kB = 1,000 B."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= size:
            return Scale(size, _three_digits(value / size), unit)
    return Scale(unit="B")


def timed(value: float) -> Scale:
    """A time in the unit that suits it: 0.42 s, 12.5 s, 3.4 min, 2.1 h, 2.5 d."""
    for unit, _, size, least in _TIMES:
        if value >= least:
            return Scale(size, 1, unit)
    return Scale(decimals=1 if value >= 10 else 2, unit="s")


def time_unit(longest: float) -> tuple[str, float]:
    """The unit that suits an axis of so many seconds, and its own seconds."""
    return next(((unit, size) for _, unit, size, least in _TIMES if longest >= least), ("seconds", 1.0))


def text(kind: Kind, value: float | None) -> str:
    """A value in the words of its kind."""
    if value is None:
        return MISSING
    return kind(value).text(value) if math.isfinite(value) else "not finite"


def spread_text(kind: Kind, mean: float, std: float | None) -> str:
    """What follows a mean: "± 0.012", in the mean's unit and decimals; nothing where there is nothing to spread."""
    if std is None:
        return ""
    finite = math.isfinite(mean) and math.isfinite(std)
    return f"± {kind(mean).text(std, unit=False)}" if finite else "± not finite"


def range_text(values: Sequence[float], kind: Kind = counted) -> str:
    """From the least to the greatest, the unit said once where both have it."""
    low, high = text(kind, min(values)), text(kind, max(values))
    if low == high:
        return low
    unit = kind(max(values)).unit
    return f"{low.removesuffix(f' {unit}')} – {high}" if unit else f"{low} – {high}"


def command(*words: str | Path) -> str:
    """A command of fedloom's, to be copied; paths below the working folder are relative to it."""
    return shlex.join(["fedloom", *(_path_text(word) if isinstance(word, Path) else word for word in words)])


def _path_text(path: Path) -> str:
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)


def _three_digits(scaled: float) -> int:
    return 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0


def lower_first(title: str) -> str:
    """A title in the middle of a sentence; "MAE" and "F1" stay as they are."""
    return title if title[1:2].isupper() or title[1:2].isdigit() else title[:1].lower() + title[1:]


def plural(count: int, word: str) -> str:
    """ "1 run", "3 runs"."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
