"""What a run's folder knows about its model: read for a later run or for a new client, and never changed by that."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from fedloom.errors import RunError
from fedloom.federation.model import Model
from fedloom.storage import checkpoint
from fedloom.storage.belonging import misfits
from fedloom.storage.folder import SUMMARY, task_folders, theta_sha256
from fedloom.storage.meta import check_meta
from fedloom.storage.seal import Seal
from fedloom.storage.store import MemoryStore
from fedloom.storage.tensors import name_of
from fedloom.types import State, Vector

Shapes = dict[str, tuple[int, ...]]
"""The named tensors of a model, in the order in which they lie in θ."""

_MOST = 4


@dataclass(frozen=True, eq=False)
class SavedModel:
    """The newest checkpoint of a run: its model, the server's state, and how far the run had come."""

    folder: Path
    theta: Vector
    """The server's model."""
    shapes: Shapes
    round: int
    finished: bool
    state: State
    index: State
    """Where the clients' memories are."""
    seal: Seal | None = None
    """What the run belongs to; none: an older fedloom did not write it down."""
    notes: tuple[str, ...] = ()
    """What does not fit in its folder, and whether the checkpoint is not the newest, which was damaged."""

    @property
    def sha256(self) -> str:
        """The fingerprint of the model."""
        return theta_sha256(self.theta)

    def memory(self) -> MemoryStore:
        """The clients' memories, to look at; to be closed."""
        return MemoryStore.restore(self.folder, self.index, tidy=False)

    def refuse_other(self, model: Model) -> None:
        """A RunError that names the shapes which differ, unless it is a model of this kind; or if it is no model."""
        refuse_other_model(f"the model in {self.folder}", self.shapes, shapes_of(model))
        if not bool(self.theta.isfinite().all()):
            raise RunError(f"the model in {self.folder} is not finite: its run has diverged. Use the model of another")

    def refuse_other_numbers(self, dtype: torch.dtype, whose: str) -> None:
        """A RunError unless the model, and what the server keeps of that shape, are such numbers as somebody says."""
        like = {f"{key!r}": value for key, value in self.state.items() if value.shape == self.theta.shape}
        for name, value in {"model": self.theta, **like}.items():
            if value.dtype != dtype:
                raise RunError(
                    f"the {name} of the checkpoint in {self.folder} is {name_of(value.dtype)}, but {whose} says "
                    f"{name_of(dtype)}: one of the two was changed; put it back"
                )


def saved_model(folder: str | Path) -> SavedModel:
    """Read the model of an earlier run from its folder, also of a run that is not finished.

    * ``folder``: the folder of the run; of tasks in sequence the model is that of the last task.

    The result has the model as a vector (``theta``), the server's state (``state``), the ``round`` after which they
    were saved, and whether the run was ``finished``.

        data = fedloom.federate("digits", clients=5)
        problem = fedloom.Problem(data, fedloom.build_model("linear", data))
        fedloom.train(problem, fedloom.FedAvg(), rounds=2, out="first")
        saved = fedloom.saved_model("first")
        fedloom.train(problem, fedloom.FedAvg(), rounds=2, theta0=saved.theta)
    """
    found = open_saved(folder)
    for note in found.notes:
        warnings.warn(note, stacklevel=2)
    return found


def open_saved(folder: str | Path) -> SavedModel:
    """The same for callers that tell of its notes themselves."""
    folder = Path(folder)
    place = _last_task(folder)
    saved = checkpoint.load_latest(place, tidy=False) if place.is_dir() else None
    if saved is None:
        raise RunError(
            f"{folder} has no model: it is no folder of a run, or the run has not begun. Give the folder of a run "
            f"(with {checkpoint.NEWEST} in it)"
        )
    check_meta(place, saved.meta)
    with checkpoint.as_written(place / checkpoint.NEWEST):
        state, key = saved.groups["state"], saved.meta["theta"]
        theta = saved.groups["model"]["theta"] if key is None else state[key]
        shapes = {name: tuple(shape) for name, shape in saved.meta["shapes"].items()}
        if not theta.is_floating_point() or theta.shape != (sum(map(math.prod, shapes.values())),):
            raise ValueError(f"its model is {name_of(theta.dtype)} of shape {list(theta.shape)}")
        return SavedModel(
            folder=place,
            theta=theta,
            shapes=shapes,
            round=int(saved.meta["clocks"]["round"]),
            finished=(place / SUMMARY).is_file(),
            state=state,
            index=saved.groups["memory"],
            seal=Seal.read(saved.meta["seal"]) if "seal" in saved.meta else None,
            notes=(saved.note,) if saved.note else tuple(f"{place}: {line}" for line in misfits(place)),
        )


def shapes_of(model: Model) -> Shapes:
    """The shapes of a model's tensors."""
    return {name: piece.shape for name, piece in model.tensors.items()}


def refuse_other_model(what: str, there: Mapping[str, tuple[int, ...]], here: Mapping[str, tuple[int, ...]]) -> None:
    """A RunError that names the tensors which differ, unless the two models are of one kind."""
    if list(there.items()) == list(here.items()):
        return
    said = []
    for name in dict.fromkeys([*there, *here]):
        if name not in here:
            said.append(f"{name} {there[name]} is only there")
        elif name not in there:
            said.append(f"{name} {here[name]} is only here")
        elif there[name] != here[name]:
            said.append(f"{name} is {there[name]} there and {here[name]} here")
    said = said or ["the same tensors stand in another order"]
    more = [f"and {len(said) - _MOST} more"] if len(said) > _MOST else []
    raise RunError(f"{what} is another one than this run's: {'; '.join([*said[:_MOST], *more])}. Use the same model")


def _last_task(folder: Path) -> Path:
    """The folder itself, or that of its last task that has begun."""
    begun = [path for path in task_folders(folder) if (path / checkpoint.NEWEST).is_file()]
    return begun[-1] if begun and not (folder / checkpoint.NEWEST).is_file() else folder
