"""Federated learning for data that differ from device to device, never meet, arrive late and keep arriving.

import fedloom

data = fedloom.federate(fedloom.load("digits"), clients=20, partition="dirichlet", alpha=0.3)
problem = fedloom.Problem(data, fedloom.build_model("mlp", data))
run = fedloom.train(problem, fedloom.FedAvg(lr=0.1), rounds=30, select=10)
print(run.frame()[["round", "accuracy", "bytes_up"]])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedloom.channel import Channel as Channel
    from fedloom.channel import Quantise as Quantise
    from fedloom.comparison import compare as compare
    from fedloom.data import describe as describe
    from fedloom.data import federate as federate
    from fedloom.data import from_arrays as from_arrays
    from fedloom.data import from_clients as from_clients
    from fedloom.data import from_parties as from_parties
    from fedloom.data import load as load
    from fedloom.data import load_file as load_file
    from fedloom.engine.adaptation import Adapted as Adapted
    from fedloom.engine.continual import Task as Task
    from fedloom.engine.continual import train_tasks as train_tasks
    from fedloom.engine.evaluation import Evaluation as Evaluation
    from fedloom.engine.fleet import FLEETS as FLEETS
    from fedloom.engine.fleet import Fleet as Fleet
    from fedloom.engine.matrix import TaskMatrix as TaskMatrix
    from fedloom.engine.run import Run as Run
    from fedloom.engine.run import load_run as load_run
    from fedloom.engine.run import train as train
    from fedloom.engine.schedule import Schedule as Schedule
    from fedloom.experiment.adaptation import adapt as adapt
    from fedloom.federation.data import FederatedData as FederatedData
    from fedloom.federation.divergences import Divergence as Divergence
    from fedloom.federation.divergences import register_divergence as register_divergence
    from fedloom.federation.model import Model as Model
    from fedloom.federation.networks import build_model as build_model
    from fedloom.federation.parties import predict_together as predict_together
    from fedloom.federation.problem import Problem as Problem
    from fedloom.federation.streams import Stream as Stream
    from fedloom.methods import Method as Method
    from fedloom.methods import NodeMethod as NodeMethod
    from fedloom.methods import ServerMethod as ServerMethod
    from fedloom.methods.listed import *  # noqa: F403
    from fedloom.prediction.predictor import Predictor as Predictor
    from fedloom.report import write_report as write_report
    from fedloom.search import Search as Search
    from fedloom.sklearn import FederatedClassifier as FederatedClassifier
    from fedloom.sklearn import FederatedRegressor as FederatedRegressor
    from fedloom.storage.saved import saved_model as saved_model
    from fedloom.tuning import Tuned as Tuned
    from fedloom.tuning import tune as tune

__version__ = "0.1.0"

_NAMES = {
    "channel": ("Channel", "Quantise"),
    "comparison": ("compare",),
    "data": ("describe", "federate", "from_arrays", "from_clients", "from_parties", "load", "load_file"),
    "engine.adaptation": ("Adapted",),
    "engine.continual": ("Task", "train_tasks"),
    "engine.evaluation": ("Evaluation",),
    "engine.fleet": ("FLEETS", "Fleet"),
    "engine.matrix": ("TaskMatrix",),
    "engine.run": ("Run", "load_run", "train"),
    "engine.schedule": ("Schedule",),
    "experiment.adaptation": ("adapt",),
    "federation.data": ("FederatedData",),
    "federation.divergences": ("Divergence", "register_divergence"),
    "federation.model": ("Model",),
    "federation.networks": ("build_model",),
    "federation.parties": ("predict_together",),
    "federation.problem": ("Problem",),
    "federation.streams": ("Stream",),
    "methods": ("Method", "NodeMethod", "ServerMethod"),
    "prediction.predictor": ("Predictor",),
    "report": ("write_report",),
    "sklearn": ("FederatedClassifier", "FederatedRegressor"),
    "search": ("Search",),
    "storage.saved": ("saved_model",),
    "tuning": ("Tuned", "tune"),
}
_HOMES = {name: f"fedloom.{home}" for home, names in _NAMES.items() for name in names}
"""Where each public name is; methods are found through their register."""


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Public names are imported when they are first used: ``import fedloom`` itself costs nothing."""
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        if name == "__all__":
            return __dir__()
        if name[:1].isupper():
            return getattr(importlib.import_module("fedloom.methods"), name)
        raise AttributeError(f"module 'fedloom' has no attribute {name!r}")


def __dir__() -> list[str]:
    from fedloom.methods import REGISTER

    return sorted([*_HOMES, "__version__", *(entry.cls.__name__ for entry in REGISTER.shipped())])
