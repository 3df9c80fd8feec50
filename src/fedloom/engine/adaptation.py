"""A new client: a trained model, its few rows, the method's own way to fit the one to the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from fedloom import __version__
from fedloom.channel import Channel
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.memories import Keeper
from fedloom.errors import ConfigError, DataError, RunError
from fedloom.execution import Worker, one_thread
from fedloom.execution.worker import asked, shown_to_all
from fedloom.federation.data import FederatedData
from fedloom.federation.metrics import names_for
from fedloom.federation.model import Model
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw
from fedloom.methods import Method
from fedloom.methods.statistics import with_statistics
from fedloom.prediction.card import Facts, ModelCard
from fedloom.prediction.predictor import ADAPTED as RECORD
from fedloom.prediction.predictor import WEIGHTS as MODEL
from fedloom.storage.belonging import hashes
from fedloom.storage.files import guarded, replacing, write_json
from fedloom.storage.folder import CARD, SCALES, theta_sha256
from fedloom.storage.saved import shapes_of
from fedloom.storage.store import MemoryStore
from fedloom.types import State, Vector


@dataclass(frozen=True, eq=False)
class Adaptee:
    """Whose model is adapted: its rows in each split, and its number in the federation that the model comes from."""

    label: str
    number: int
    data: FederatedData
    rows: dict[str, Tensor]
    seen: bool
    """Whether it took part in the training."""

    @staticmethod
    def among(data: FederatedData, client: int, *, seen: bool, number: int | None = None) -> Adaptee:
        """A client of a federation; ``number`` is what the trained model's server would call it."""
        rows = {name: owned[client] for name, owned in data.splits.items()}
        x_scale, y_scale = (scale and scale.of(client) for scale in (data.x_scale, data.y_scale))
        data = replace(data, x_scale=x_scale, y_scale=y_scale)
        return Adaptee(data.label(client), client if number is None else number, data, rows, seen)

    def usual(self) -> Evaluation:
        """A client that was never seen fits its support and is evaluated on its query; others on their test rows."""
        halves = "support" in self.rows
        judged = "query" if halves and not self.seen else "test"
        return Evaluation(model="adapted", split=judged, adapt_split="support" if halves else "train")

    def keeping(self, split: str, count: int | None, draw: Draw) -> Adaptee:
        """The same client with only so many rows of a split, drawn at random."""
        if count is None:
            return self
        there = len(self.rows[split])
        if count > there:
            raise DataError(f"client {self.label} has {there} rows to adapt on ({split}); ask for at most so many")
        chosen = np.sort(draw.generator("adapt support").permutation(there)[:count])
        return replace(self, rows={**self.rows, split: self.rows[split][torch.from_numpy(chosen)]})

    def alone(self) -> FederatedData:
        """A federation in which nobody else has any rows."""
        before = torch.zeros(self.number + 1, dtype=torch.int64)
        splits = {
            name: Ragged(torch.cat([before, torch.tensor([len(rows)])]), rows) for name, rows in self.rows.items()
        }
        return replace(self.data, splits=splits, roles=None, names=None)


@dataclass(frozen=True, eq=False)
class Adapted:
    """A model fitted to one client's rows, and how good it was on other rows of that client, before and after.

    ``adapt`` gives it back, and ``save`` writes it into a folder.

        data = fedloom.federate("digits", clients=5)
        problem, method = fedloom.Problem(data, fedloom.build_model("linear", data)), fedloom.FedAvg()
        run = fedloom.train(problem, method, rounds=2)
        adapted = fedloom.adapt(run, client=3, problem=problem, method=method).save("client-3")
        print(adapted.before["accuracy"], adapted.after["accuracy"], adapted.folder)
    """

    theta: Vector
    """The adapted model."""
    before: dict[str, float]
    """The metrics of the model that it was adapted from."""
    after: dict[str, float]
    """The metrics of the adapted model, on the same rows."""
    record: dict[str, Any]
    """What it is: the client, its rows, the steps, the run that it comes from."""
    model: Model
    """The network of which these are the parameters."""
    card: ModelCard
    """How rows are read and what outputs mean."""
    folder: Path | None = None
    """Where it is saved; none: nowhere."""

    def save(self, folder: str | Path) -> Adapted:
        """The model by the names of its tensors (safetensors), how rows are read, and a JSON that says what it is."""
        path = Path(folder)
        with guarded(path):
            if path.exists() and not (path / RECORD).is_file() and (not path.is_dir() or any(path.iterdir())):
                raise RunError(f"{path} is there already and holds no adapted model; choose another folder")
            path.mkdir(parents=True, exist_ok=True)
            (path / SCALES).unlink(missing_ok=True)  # of an earlier model, which this one may have no need of
        views = self.model.views(self.theta).items()  # of one vector, which safetensors takes for tensors that are tied
        apart = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in views}
        with replacing(path / MODEL) as file:
            file.write(safetensors.torch.save(apart))
        self.card.write(path)
        write_json(path / RECORD, {**self.record, "files": hashes(path, (MODEL, CARD, SCALES))})
        return replace(self, folder=path)


def adapt_client(
    problem: Problem,
    method: Method,
    client: Adaptee,
    state: State,
    store: MemoryStore,
    *,
    round: int,
    seed: int,
    evaluation: Evaluation,
    about: Mapping[str, Any],
) -> Adapted:
    """Adapt the model in ``state`` to a client by the method's own rule, and evaluate it before and after.

    ``problem`` is what the model was trained on; ``evaluation`` says on which rows, by how many steps of which size,
    and which metrics; ``about`` goes into the record.
    """
    fitted, judged = evaluation.fitted, evaluation.evaluated
    evaluation = replace(evaluation, metrics=names_for(problem.data, evaluation.metrics))
    for split, what in ((fitted, "adapt on"), (judged, "be evaluated on")):
        if len(client.rows.get(split, ())) == 0:
            raise DataError(
                f"client {client.label} has no rows to {what} ({split}); give it some, or take another client"
            )
    if evaluation.parts in ("ensemble", "vote"):
        raise ConfigError(
            f"parts = {evaluation.parts!r} is what several models say together, and adapting makes one; choose 'best' "
            "or 'average'"
        )
    evaluation.check_parts(method)
    lone = Problem(client.alone(), problem.model, problem.loss.name, problem.dtype, problem.loss.class_weights)
    worker = Worker(lone, with_statistics(method, problem.model), Channel(), seed)
    ids = np.array([client.number])
    memory = Keeper(store, elsewhere=False).of(ids)
    notes = list(about.get("notes", ()))
    if not bool(memory.known.all()) and evaluation.parts == "own" and method.instead is not None:
        notes.append(f"client {client.label} never took part: such clients use {method.instead}")
    adapted = replace(evaluation.work(ids, round), model="adapted", memory=memory, reference=None)
    shown = shown_to_all(worker.method, state, "adapted", evaluation.parts)
    with one_thread():
        try:
            adapted = asked(worker.method, state, adapted)
            theta = worker.models(lone.client(ids, Draw(seed, round)), shown, adapted)
        except IndexError as error:
            raise RunError(
                f"{type(method).__name__} keeps something for each client that took part, which client {client.label} "
                "did not: it cannot be adapted to it"
            ) from error
        scores = [worker.evaluate(shown, replace(adapted, model=which)).values for which in ("personal", "adapted")]
    before, after = ({name: float(value[0]) for name, value in values.items()} for values in scores)
    theta = theta.expand(1, -1)[0].detach().clone()
    record = {
        "client": client.label,
        "data": client.data.name,
        "method": type(method).__name__,
        **about,
        **({"notes": notes} if notes else {}),
        "round": round,
        "steps": evaluation.adapt_steps,
        "lr": evaluation.adapt_lr,
        "parts": evaluation.parts,
        "adapted_on": {"split": fitted, "rows": len(client.rows[fitted])},
        "evaluated_on": {"split": judged, "rows": len(client.rows[judged])},
        "before": before,
        "after": after,
        "parameters": theta.numel(),
        "shapes": {name: list(shape) for name, shape in shapes_of(problem.model).items()},
        "theta_sha256": theta_sha256(theta),
        "fedloom": __version__,
    }
    facts = replace(Facts.of(problem, method), product="global", clients=1, names=(client.label,))
    card = replace(ModelCard.of(lone, method), facts=facts)
    return Adapted(theta, before, after, record, problem.model, card)
