"""Comparisons: several methods, each with several seeds, otherwise equal; and sweeps over the values of settings.

from fedloom import compare
compared = compare(["fedavg", "fedprox:mu=0.1"], {"data.name": "digits"}, seeds=3, sweep={"method.lr": [0.1, 0.01]})
"""

from fedloom.comparison.comparing import Compared, compare
from fedloom.comparison.comparison import Comparison
from fedloom.comparison.entries import Entry, entries_of, entry_of, parse_entry, parse_sweep, swept
from fedloom.comparison.sources import FromProblem, FromSettings

__all__ = [
    "Compared",
    "Comparison",
    "Entry",
    "FromProblem",
    "FromSettings",
    "compare",
    "entries_of",
    "entry_of",
    "parse_entry",
    "parse_sweep",
    "swept",
]
