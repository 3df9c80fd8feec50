"""Tables of experiments, ours beside the published values: read from a file, run, resumed, judged and recorded.

from fedloom.reproduce import Plan, Reproduction
"""

from fedloom.reproduce.plan import Cell, Measure, Plan, Published
from fedloom.reproduce.reproduction import Reproduction

__all__ = ["Cell", "Measure", "Plan", "Published", "Reproduction"]
