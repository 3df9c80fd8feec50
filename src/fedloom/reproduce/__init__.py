"""Tables of experiments, ours beside the published values: read from a file, run, resumed, compared and recorded.

from fedloom.reproduce import Reproduction, read_plan
"""

from fedloom.reproduce.plan import Cell, Improvement, Measure, Plan, Published
from fedloom.reproduce.reading import read_plan
from fedloom.reproduce.reproduction import Reproduction

__all__ = ["Cell", "Improvement", "Measure", "Plan", "Published", "Reproduction", "read_plan"]
