"""Tuning: the settings of methods, found by trials on validation rows; successive halving, exact and resumable.

from fedloom import tune
tuned = tune(["fedavg", "fedprox"], settings={"data.name": "digits"}, budget="2m", out="runs/tuned")
"""

from fedloom.tuning.plan import Plan, read_plan
from fedloom.tuning.tuned import Tuned, tune
from fedloom.tuning.tuning import Asked, Tuning
from fedloom.tuning.walk import Moment

__all__ = ["Asked", "Moment", "Plan", "Tuned", "Tuning", "read_plan", "tune"]
