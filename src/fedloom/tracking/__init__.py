"""Who else is told of a run while it goes on: TensorBoard, MLflow, Weights & Biases, or a tracker of the user's own.

A tracker changes nothing of a run. One that fails is left out, which is said in a line; one that goes on with a resumed
run is told every round once.
"""

from __future__ import annotations

from fedloom.tracking.mlflow import MLflow
from fedloom.tracking.register import TRACKERS, name_of, parse_tracker, tracker_of
from fedloom.tracking.tensorboard import TensorBoard
from fedloom.tracking.tracker import TrackedRun, Tracker, figures
from fedloom.tracking.tracking import Tracking, key_of
from fedloom.tracking.wandb import WandB

__all__ = [
    "TRACKERS",
    "MLflow",
    "TensorBoard",
    "TrackedRun",
    "Tracker",
    "Tracking",
    "WandB",
    "figures",
    "key_of",
    "name_of",
    "parse_tracker",
    "tracker_of",
]
