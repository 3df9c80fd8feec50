"""Experiments that can be: methods, data, partitions, schedules, fleets, streams, channels in any combination, with
values at the edges of what is allowed. Most of them run; a run ends in the same bits when it was stopped on the way.
"""

from __future__ import annotations

import json
import math
import shutil
import types
import warnings
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
import pandas as pd
import pytest
from annotated_types import Ge, Gt, Interval, Le, Lt
from harness import REFUSED, bounded, fuzz, little_memory
from typer.testing import CliRunner

from fedloom.channel import TRANSFORMS
from fedloom.cli import app
from fedloom.engine.fleet import FLEETS
from fedloom.engine.run import Interrupted
from fedloom.engine.selection import SELECTIONS
from fedloom.errors import FedloomError
from fedloom.experiment import load_experiment
from fedloom.experiment.forms import NONE, Field
from fedloom.experiment.sections import SECTIONS, SPLITS, Top
from fedloom.federation.distributions import Distribution
from fedloom.federation.divergences import DIVERGENCES
from fedloom.federation.metrics import METRICS
from fedloom.methods import REGISTER
from fedloom.register import Register
from fedloom.storage import toml
from fedloom.storage.belonging import misfits
from fedloom.storage.checkpoint import NEWEST, load

SECONDS = 60
"""After so long an experiment that takes a tenth of a second hangs."""
ROWS = 48
CLOCKS = ("wall_seconds",)
WORDS = {"h": DIVERGENCES, "split": SPLITS, "adapt_split": SPLITS, "metrics": METRICS, "metric": [*METRICS, "loss"]}
"""What can be said where any text is taken."""
DISTRIBUTIONS = ["0", "0.5", "3", "200", "uniform:0:1", "uniform:1:50", "lognormal:2:0.5", "exponential:2", "inf"]
DISTRIBUTIONS += [
    "1e-9",
    "1e-300",
    "1e12",
    "1e300",
    "lognormal:1:10",
    "lognormal:1e300:3",
    "exponential:1e308",
    "0.0001",
]
STEP_SIZES = ["step:0.1:1:0.5", "cosine:0.1:0:2", "inverse:0.1:1", "exponential:0.1:0.9", "warmup:0.1:2"]
WHOLE = [0, 1, 2, 3, 5, 5, 20]
NUMBERS = [0.0, 1e-300, 1e-9, 0.01, 0.3, 0.5, 0.5, 0.99, 1.0, 1.0, 2.0, 30.0, 1e4, 1e12, 1e38, 1e300]
UNTOUCHED = {"trace", "path", "run", "sha256", "ray_address", "executor", "workers", "like", "parties", "sizes"}
"""Settings that need a file or other processes, or that make the run another one than is meant."""


def values(annotation: Any, usual: Any) -> list[Any]:
    """Values of a type: at its bounds, near them, and around the usual one."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        for mark in parts[1:]:
            if isinstance(mark, Register):
                return list(mark)
        if parts[0] is Distribution:
            return list(DISTRIBUTIONS)
        changing = [*STEP_SIZES] if any("WrapValidator" in type(mark).__name__ for mark in parts[1:]) else []
        return [value for value in [*values(parts[0], usual), *edges(parts[1:])] if within(value, parts[1:])] + changing
    if origin is Literal:
        return list(parts)
    if origin in (Union, types.UnionType):
        return [value for part in parts for value in values(part, usual)]
    if annotation is type(None):
        return [NONE]
    if annotation is bool:
        return [True, False]
    if annotation is int:
        return WHOLE + ([usual] if isinstance(usual, int) else [])
    if annotation is float:
        return NUMBERS + ([usual / 2, usual, usual * 2] if isinstance(usual, int | float) else [])
    if origin is not None and parts:  # a list
        return [made for value in values(parts[0], None)[:6] for made in ([value], [value, value])]
    return []


def bounds(marks: Iterable[Any]) -> Iterable[Any]:
    for mark in marks:
        yield from mark if isinstance(mark, Interval) else [mark]


def edges(marks: Iterable[Any]) -> list[Any]:
    """The bounds themselves, and what is just inside them."""
    found = list[Any]()
    for bound in bounds(marks):
        if isinstance(bound, Ge | Le):
            found.append(bound.ge if isinstance(bound, Ge) else bound.le)
        elif isinstance(bound, Lt):
            found.append(math.nextafter(float(bound.lt), -math.inf))  # type: ignore[arg-type]
    return found


def within(value: Any, marks: Iterable[Any]) -> bool:
    for bound in bounds(marks):
        if (
            (isinstance(bound, Ge) and not value >= bound.ge)
            or (isinstance(bound, Gt) and not value > bound.gt)
            or (isinstance(bound, Le) and not value <= bound.le)
            or (isinstance(bound, Lt) and not value < bound.lt)
        ):
            return False
    return True


def tables(place: Path) -> list[dict[str, Any]]:
    """Data of every kind: made, shipped, and of the user's own files."""
    draw = np.random.default_rng(0)
    x, k = draw.normal(size=(ROWS, 3)), np.arange(ROWS)
    rows = pd.DataFrame({"who": k % 4, "when": k * 60, "a": x[:, 0], "b": x[:, 1], "c": x[:, 2]})
    rows["days"], rows["ill"], rows["cough"] = x[:, 0] * 2 - x[:, 1], (x[:, 0] > 0).astype(int), k % 2
    rows["kind"] = k % 3
    rows.to_csv(place / "mine.csv", index=False)
    np.savez(place / "images.npz", x=draw.normal(size=(ROWS, 1, 8, 8)), y=k % 3, clients=k % 4)
    np.savez(place / "windows.npz", x=draw.normal(size=(ROWS, 5, 2)), y=x[:, 0])
    own: dict[str, Any] = {"path": str(place / "mine.csv"), "client_column": "who", "feature_columns": ["a", "b", "c"]}
    return [
        {"name": "quadratics", "clients": 4, "rows": 12, "dimension": 3},
        {"name": "synthetic", "clients": 4, "rows": 16, "features": 4, "classes": 3},
        {"name": "synthetic", "clients": 8, "rows": 12, "features": 3, "classes": 3, "target": 0.25},
        {"name": "breast-cancer", "clients": 5},
        {"name": "diabetes", "clients": 5},
        {**own, "label_column": "days", "task": "regression", "timestamp_column": "when"},
        {**own, "label_column": "kind", "timestamp_column": "when"},
        {**own, "label_column": "ill", "task": "binary", "scaling": "standard"},
        {**own, "label_column": ["ill", "cough"], "task": "multilabel"},
        {**own, "label_column": ["days", "a"], "feature_columns": ["b", "c"], "task": "regression"},
        {"path": str(place / "images.npz")},
        {"path": str(place / "windows.npz"), "clients": 4},
    ]


def made(data: list[dict[str, Any]], random: Random) -> dict[str, Any]:
    """An experiment: most combinations of its parts can be."""

    def sometimes(share: float, part: dict[str, Any]) -> dict[str, Any]:
        return part if random.random() < share else {}

    table, method = dict(random.choice(data)), random.choice(list(REGISTER))
    cls = REGISTER[method].cls
    images, windows = "images" in table.get("path", ""), "windows" in table.get("path", "")
    if getattr(cls, "layout", "rows") == "features":
        table = {"name": random.choice(["quadratics", "breast-cancer", "diabetes"]), "clients": 3}
        table |= {"partition": "features"}
    elif random.random() < 0.6:
        first = ["iid", "classes", "dirichlet", "quantity", "natural", "time"]
        then = ["feature-skew", "concept", "quantity"]
        steps = random.choice(
            [[random.choice(first)], [random.choice(first), random.choice(then)], [random.choice(then)]]
        )
        table["partition"] = steps if len(steps) > 1 else steps[0]
        if "natural" not in steps:
            table.setdefault("clients", 4)
    models = ["linear", "mlp"] + (["lenet", "cnn"] if images else ["lstm"] if windows else [])
    model = random.choice(models)
    small = {"mlp": {"hidden": [4]}, "cnn": {"channels": [2]}, "lstm": {"hidden": 3}}.get(model, {})
    asynchronous = {"schedule": {"name": "async", "concurrency": random.choice([1, 2])}}
    clock = {"preset": random.choice(["cross-silo", "cross-device"]), "speed": random.choice(["200", "uniform:50:500"])}
    stream = sometimes(0.2, {random.choice(["rate", "growth", "duration"]): random.choice(["0.5", "2", "uniform:1:9"])})
    fleet = clock if stream or random.random() < 0.4 else sometimes(0.3, {"preset": random.choice(list(FLEETS))})
    selection = {"name": random.choice(list(SELECTIONS))}
    if selection["name"] != "all":
        selection |= random.choice([{"per_round": 2}, {"fraction": 0.5}, {"fraction": 1.0}])
    return {
        "rounds": 3,
        "seed": random.choice([0, 1, 2**31, -1]),
        "data": table,
        "method": {"name": method},
        "execution": {"executor": "serial", **random.choice([{}, {"checkpoint_every": 1}, {"checkpoint_every": 2}])},
        **sometimes(0.7, {"model": {"name": model, **small}}),
        **sometimes(0.5, {"selection": selection}),
        **sometimes(0.3, asynchronous),
        **({"fleet": fleet} if fleet else {}),
        **({"stream": stream} if stream else {}),
        **sometimes(0.2, {"channel": [{"name": random.choice(list(TRANSFORMS))}]}),
        **sometimes(0.2, {"dtype": random.choice(["float32", "float64"])}),
        **sometimes(0.3, {"evaluation": {"every": random.choice([0, 1, 2])}}),
        **sometimes(0.06, {"task": [{"rounds": 1}, {"rounds": 2, "data": {"seed": 5}}]}),
    }


def touched(experiment: dict[str, Any], random: Random) -> None:
    """Change up to two settings to other values of their types, in place."""
    for _ in range(random.choice([0, 1, 1, 2, 2, 3])):
        name = random.choice([*["method"] * 4, *sorted(set(SECTIONS) - {"prior"}), ""])
        section: Any = experiment.get(name, {}) if name else experiment
        if name == "stream" and not section:
            continue
        inner = section[0] if isinstance(section, list) else section
        if name == "":
            fields = {key: Field(key, Top.__annotations__.get(key, Any), None) for key in ("dtype",)}
        else:
            fields = {**SECTIONS[name](inner).fields}
        known = [key for key in fields if key not in UNTOUCHED and key not in ("name", "preset", "seed", "partition")]
        if not known:
            continue
        key = random.choice(known)
        usual = inner.get(key, fields[key].default)
        found = list(WORDS[key]) if key in WORDS else values(fields[key].annotation, usual)
        if not found:
            continue
        value = random.choice(found)
        inner[key] = [value] if key == "metrics" else value
        if name and inner and name not in experiment:
            experiment[name] = inner


def said(result: Any) -> str:
    """What a command has said, which ended by itself."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert "Traceback" not in result.output
    return str(result.output)


def attempt(place: Path, data: list[dict[str, Any]], random: Random) -> str:
    experiment = made(data, random)
    touched(experiment, random)
    shutil.rmtree(place / "runs", ignore_errors=True)
    file, whole, stopped = place / "experiment.toml", place / "runs" / "whole", place / "runs" / "stopped"
    file.write_text(toml.dumps(experiment))
    report = ["--report" if random.random() < 0.1 else "--no-report"]
    with bounded(SECONDS, str(experiment)), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            load_experiment(file).check()
        except FedloomError as error:
            return REFUSED if str(error).strip() else "refused without a word"
        result = CliRunner().invoke(app, ["run", str(file), "--out", str(whole), "--quiet", *report])
        text = said(result)
        if result.exit_code != 0:
            assert result.exit_code == 2, text
            assert text.startswith("error: ")
            if any(word in text for word in EXPECTED):
                return "run, and ended in words"
            raise AssertionError(f"accepted, and then refused: {text}\n{experiment}")
        finite(whole, text, experiment)
        adapted = ["adapt", str(whole), "--client", "1", "--out", str(place / "runs" / "adapted")]
        result = CliRunner().invoke(app, adapted)
        assert said(result)
        assert result.exit_code in (0, 2)
        calls = random.randrange(1, 5)

        def progress(row: dict[str, Any], rounds: int) -> None:
            nonlocal calls
            calls -= 1
            if calls < 0:
                raise Interrupted(None, 0)

        try:
            load_experiment(file).run(stopped, progress=progress)
        except Interrupted:
            result = CliRunner().invoke(app, ["resume", str(stopped), "--quiet", *report])
            assert result.exit_code == 0, f"{said(result)}\n{experiment}"
    for one in warned:
        where = f"{one.category.__name__} at {one.filename}:{one.lineno}\n{experiment}"
        assert issubclass(one.category, UserWarning), f"{one.message} {where}"
        assert "\n" not in str(one.message), where
    ends = [outcome(folder) for folder in (whole, stopped)]
    assert ends[0] == ends[1], f"another result after a stop\n{experiment}"
    return "run"


EXPECTED = [
    "is not finite; try a smaller step size",
    "cannot be told apart any more",
    "clients will ever be there again",
    "l2gd: with p = ",
    "l2gd: a step towards the mean would go",  # by the curvature, which its clients measure first
]
"""What only a run can tell."""


def outcome(folder: Path) -> Any:
    """All that a run's folder tells of its result."""
    summary = json.loads((folder / "summary.json").read_text())
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    dropped = {*CLOCKS, "run", "sha256", "chain"}
    return [{key: value for key, value in row.items() if key not in dropped} for row in (summary, *history)]


def finite(folder: Path, text: str, experiment: Any) -> None:
    """A model that is not finite is said to be none."""
    assert misfits(folder) == []
    place = folder if (folder / NEWEST).exists() else folder / "task-2"
    tensors = [value for group in load(place / NEWEST).groups.values() for value in group.values()]
    model = [value for value in tensors if value.is_floating_point()]
    if not all(bool(value.isfinite().all()) for value in model):
        assert "not finite" in text, f"not finite, and not said: {text}\n{experiment}"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return tables(tmp_path_factory.mktemp("tables"))


def test_an_experiment_that_can_be_runs_and_ends_in_the_same_bits_after_a_stop(
    tmp_path: Path, data: list[dict[str, Any]]
) -> None:
    with little_memory():
        fuzz("experiments", 12, partial(attempt, tmp_path, data))
