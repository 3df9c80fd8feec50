"""Experiments: settings from a file, from flags or from both, checked as a whole, and the runs that they make.

from fedloom.experiment import Experiment
experiment = Experiment.load("experiment.toml", {"method.lr": 0.05})
run = experiment.run("runs/mine")
"""

from fedloom.experiment.experiment import Experiment, Shelf
from fedloom.experiment.forms import Form
from fedloom.experiment.sections import foreign, method_form
from fedloom.experiment.settings import Override, Settings, parse_set, parse_value
from fedloom.experiment.tasks import TaskSequence, load_experiment, make_experiment

__all__ = [
    "Experiment",
    "Form",
    "Override",
    "Settings",
    "Shelf",
    "TaskSequence",
    "foreign",
    "load_experiment",
    "make_experiment",
    "method_form",
    "parse_set",
    "parse_value",
]
