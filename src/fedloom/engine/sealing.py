"""The seal of a run: what of its setting decides the result, as texts that can be compared years later."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedloom.engine.setting import Setting
from fedloom.errors import RunError
from fedloom.federation.data import FederatedData
from fedloom.federation.problem import Problem
from fedloom.methods import Method, name_of
from fedloom.storage.checkpoint import Checkpoint
from fedloom.storage.folder import theta_sha256
from fedloom.storage.history import History
from fedloom.storage.seal import Seal, listed
from fedloom.storage.tensors import name_of as name_of_dtype
from fedloom.storage.tensors import to_bytes

_MAY_CHANGE = ("schedule.seconds", "schedule.metric", "schedule.target", "schedule.patience")
"""What ends a run, which its user may change on the way, as he may change the number of rounds."""


def seal_of(setting: Setting) -> Seal:
    """What a run of this setting belongs to. Where the rows are elsewhere, on the nodes, these have their own hash."""
    settings, usual = dict[str, str](), dict[str, str]()
    for name, value in _deciding(setting).items():
        settings |= dict(_texts(name, value))
        usual |= dict(_usual(name, value))
    if setting.fleet.trace is not None:  # the file may have moved, but not changed
        settings["fleet.trace"] = hashlib.sha256(Path(setting.fleet.trace).read_bytes()).hexdigest()
    kept = {name: text for name, text in settings.items() if name not in _MAY_CHANGE}
    parts = {"settings": kept, "model": _model(setting.problem)}
    return Seal(parts | ({"data": _data(setting.problem.data)} if setting.problem.data.here else {}), usual)


def _deciding(setting: Setting) -> dict[str, Any]:
    """The parts of a setting that decide the result; evaluations, executors and who goes on after an error do not."""
    return {
        "seed": setting.seed,
        "method": setting.method,
        "selection": setting.select,
        "schedule": setting.schedule,
        "fleet": setting.fleet,
        "channel": tuple(setting.channel.transforms),
        "stream": setting.stream,
        "stack": setting.stack,
        "prior": setting.prior,
        "theta0": setting.theta0,
    }


def _texts(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """A setting as texts, one for each of the fields of what it is made of."""
    if isinstance(value, Tensor):
        yield name, theta_sha256(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(f"{name}.{key}", item)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, item in enumerate(value):
            yield from _texts(f"{name}.{index}", item)
    elif dataclasses.is_dataclass(value) and type(value).__str__ is object.__str__:
        yield name, name_of(value) if isinstance(value, Method) else type(value).__name__
        for field in dataclasses.fields(value):
            yield from _texts(f"{name}.{field.name}", getattr(value, field.name))
    else:
        yield name, str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _usual(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The defaults of the fields of a setting."""
    if not dataclasses.is_dataclass(value):
        return
    for field in dataclasses.fields(value):
        if field.default is not dataclasses.MISSING:
            yield from _texts(f"{name}.{field.name}", field.default)
        yield from _usual(f"{name}.{field.name}", getattr(value, field.name))


def _model(problem: Problem) -> dict[str, str]:
    module = repr(problem.model.module).encode()
    return {
        "tensors": ", ".join(f"{name} {tuple(piece.shape)}" for name, piece in problem.model.slices.items()),
        "module": hashlib.sha256(module).hexdigest()[:16],
        "loss": problem.loss.name,
        "dtype": name_of_dtype(problem.dtype),
        **({} if problem.loss.class_weights is None else {"class weights": str(problem.loss.class_weights)}),
    }


def _data(data: FederatedData) -> dict[str, str]:
    """Sizes, which say what has changed, and hashes, which say whether anything has."""
    found = {"clients": str(data.clients)}
    for name, owned in data.splits.items():
        found[f"{name} rows"] = str(int(owned.offsets[-1]))
    if data.augment is not None:
        found["augment"] = str(data.augment)
    return found | {"values": rows_sha256(data)}


def rows_sha256(data: FederatedData) -> str:
    """The hash of every client's rows: features, labels, times, who owns which, and how they were scaled."""
    digest = hashlib.sha256()

    def add(name: str, tensor: Tensor | None) -> None:
        if tensor is not None:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
            digest.update(np.ascontiguousarray(to_bytes(tensor)).data)

    for name, tensor in (("x", data.x), ("y", data.y), ("time", data.time), ("roles", data.roles)):
        add(name, tensor)
    for columns in () if data.blocks is None else data.blocks.columns:
        add("columns", columns)
    for name, owned in data.splits.items():
        add(f"{name} offsets", owned.offsets)
        add(f"{name} rows", owned.rows)
    digest.update(repr((data.task, data.classes, data.names, data.feature_names, data.target_names)).encode())
    return digest.hexdigest()


def go_on(folder: Path, saved: Checkpoint, now: Seal, history: History, force: bool) -> tuple[list[str], list[str]]:
    """Before a run goes on from a checkpoint: what was changed and is to be taken all the same, and what to note.

    A RunError when something was changed that decides the result, unless ``force`` says to take it.
    """
    if "seal" not in saved.meta:
        return [], [
            f"{folder} was begun by a fedloom that did not write down what a run belongs to: whether its settings and "
            "its data are the same still was not checked"
        ]
    changes = Seal.read(saved.meta["seal"]).changes(now)
    completed = saved.meta["clocks"]["round"]
    whole = bool(history.rows) and history.rows[-1]["round"] >= completed  # of what is cut off the history itself tells
    if history.fault is not None:
        changes.append(history.fault)
    elif whole and history.head(completed) != saved.meta["history"]:
        changes.append(f"{history.path} does not have the rows that it had when the checkpoint was written")
    if changes and not force:
        raise RunError(
            f"{folder} does not go on as it was begun: {listed(changes)}. Put back what was changed, begin a new run "
            "in another folder, or go on all the same with --force-settings (in Python: force_settings=True), which "
            "will be written down"
        )
    if changes:
        history.mend()
    return changes, [f"went on with what was changed after round {completed}: {listed(changes)}"] if changes else []
