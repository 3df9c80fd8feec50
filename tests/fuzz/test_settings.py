"""Any settings: an experiment is refused in words, or it runs."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from random import Random
from typing import Any

from harness import STRANGE, altered, flipped, fuzz, little_memory, places

from fedloom.errors import FedloomError
from fedloom.experiment import Experiment, load_experiment
from fedloom.experiment.sections import SECTIONS, Top
from fedloom.experiment.settings import Override, Settings, parse_set
from fedloom.methods import REGISTER
from fedloom.storage import toml

MADE: dict[str, Any] = {"name": "quadratics", "clients": 4, "rows": 6, "dimension": 3}
LABELLED: dict[str, Any] = {"name": "synthetic", "clients": 4, "rows": 12, "features": 4, "classes": 3}
SLOW: dict[str, Any] = {"preset": "cross-device", "fails_every": 100.0, "repair": 5.0}
BASES: list[dict[str, Any]] = [
    {"data": MADE, "method": {"name": "fedavg", "lr": 0.01, "epochs": 1}, "selection": {"per_round": 2}},
    {"data": LABELLED, "method": {"name": "fedadam", "tau": 0.01}, "model": {"name": "mlp", "hidden": [4]}},
    {
        "data": LABELLED,
        "method": {"name": "scaffold"},
        "fleet": SLOW,
        "evaluation": {"every": 1, "metrics": ["accuracy"]},
    },
    {"data": LABELLED, "method": {"name": "fedbuff"}, "schedule": {"name": "async", "concurrency": 2}, "fleet": SLOW},
    {"data": MADE, "method": {"name": "fedavg"}, "stream": {"rate": "2", "burst": 2}, "fleet": {"speed": "100"}},
    {"data": LABELLED, "method": {"name": "fedavg"}, "channel": [{"name": "quantise", "bits": 4}]},
    {"data": {**MADE, "partition": "features", "clients": 3}, "method": {"name": "sharing-admm"}},
    {
        "data": {"name": "breast-cancer", "clients": 5, "partition": "dirichlet", "alpha": 0.5},
        "method": {"name": "admm"},
    },
    {
        "data": {**LABELLED, "target": 0.25},
        "method": {"name": "fedmeta-maml"},
        "evaluation": [{"name": "a"}, {"name": "b"}],
    },
    {"data": LABELLED, "method": {"name": "fedprox"}, "task": [{"rounds": 1}, {"rounds": 1, "method": {"lr": 0.02}}]},
]
_MOST = 3000
"""A number that means more work than a test has time for: such an experiment is checked, and not run."""


def settings_of(random: Random) -> dict[str, Any]:
    """Settings that can be, with one to three of them changed, or with one that they lack."""
    values = {"rounds": 2, "seed": 3, **copy.deepcopy(random.choice(BASES)), "execution": {"executor": "serial"}}
    if random.random() < 0.3:
        values["method"] = {"name": random.choice(list(REGISTER))}
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        if random.random() < 0.25:
            altered(values, random)
            continue
        name = random.choice(["", *SECTIONS])
        section = values.setdefault(name, {}) if name else values
        if isinstance(section, list):
            section = random.choice(section) if section else {}
        if not isinstance(section, dict):
            continue
        fields = vars(Top()) if not name else SECTIONS[name](section if name else {}).fields
        if fields:
            key = random.choice([*fields, *[key for key in fields if key in section] * 2])
            usual = section.get(key, getattr(fields[key], "default", fields[key]))
            section[key] = copy.deepcopy(random.choice(alike(usual) if random.random() < 0.6 else STRANGE))
    return values


def alike(usual: Any) -> list[Any]:
    """Strange values of the same type as the usual one, which get further than others."""
    kinds = (bool, int, float) if isinstance(usual, int | float) else (type(usual),)
    return [value for value in STRANGE if type(value) in kinds] or [0, 1, 0.5]


def written(values: dict[str, Any], random: Random, folder: Path) -> Experiment | Any:
    """The experiment by one of the ways in which settings come: objects, a file, or overrides."""
    way = random.randrange(4)
    if way == 0:
        return load_experiment(None, [Override(key, value, "--x") for key, value in values.items()])
    try:
        text = toml.dumps(json.loads(json.dumps(values, default=str)))
    except (FedloomError, ValueError, TypeError):
        return load_experiment(None, values)
    path = folder / "experiment.toml"
    data = text.encode()
    path.write_bytes(flipped(data, random) if way == 1 else data)
    if way == 2:
        ways = [".".join(map(str, way)) for way in places(values) if all(isinstance(key, str) for key in way)]
        sets = [f"{random.choice(ways)}={random.choice(STRANGE)}"]
        return load_experiment(path, [parse_set(one) for one in sets])
    return load_experiment(path)


def laborious(value: Any) -> bool:
    """Whether something in the settings asks for more work than there is time for."""
    if isinstance(value, dict):
        return any(laborious(item) for key, item in value.items() if key not in ("seed", "storage"))
    if isinstance(value, list | tuple):
        return any(map(laborious, value))
    return isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) < _MOST


def elsewhere(values: dict[str, Any]) -> bool:
    """Whether the work would be done by other processes, which take seconds to start."""
    execution = values.get("execution")
    return not isinstance(execution, dict) or execution.get("executor") != "serial"


def attempt(folder: Path, random: Random) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        experiment = written(settings_of(random), random, folder)
        values = experiment.settings.values
        experiment.check()
        if laborious(values) or elsewhere(values):
            return "accepted"
        rounds = experiment.resolved().get("rounds", 0)
        if not isinstance(rounds, int) or rounds > 2:
            experiment = type(experiment)(Settings.read(None, {**values, "rounds": 2}))
        experiment.run(folder / "run", force=True)
    return "run"


def test_any_settings_are_refused_in_words_or_run(tmp_path: Path) -> None:
    with little_memory():
        fuzz("settings", 60, lambda random: attempt(tmp_path, random))


def test_any_text_is_a_value_or_refused(tmp_path: Path) -> None:
    texts = [
        "[" * 9000,
        "9" * 5000,
        "{a=" * 3000,
        "1979-99-99",
        "'''",
        '"',
        "a.b.c",
        "=",
        "\\",
        "[1,",
        "1e9999",
        "0x" + "f" * 9000,
    ]

    def attempt(random: Random) -> str:
        text = random.choice(texts)
        text = flipped(text.encode(), random).decode(errors="surrogateescape") if random.random() < 0.5 else text
        load_experiment(None, [parse_set(f"{random.choice(['method.lr', 'rounds', 'name', 'x.y'])}={text}")]).check()
        return "accepted"

    with little_memory():
        fuzz("values", 20, attempt)
