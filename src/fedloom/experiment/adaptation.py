"""Adaptation as a service: a run's folder, a client's few rows, and the personal model that comes of both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedloom.data import Table, federate
from fedloom.engine.adaptation import Adapted, Adaptee, adapt_client
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.run import Run
from fedloom.engine.sealing import seal_of
from fedloom.errors import ConfigError, DataError, RunError
from fedloom.experiment.data import read_data
from fedloom.experiment.experiment import Experiment
from fedloom.experiment.faults import Faults
from fedloom.experiment.settings import Override, Settings
from fedloom.experiment.words import hint
from fedloom.federation.data import SOURCE, FederatedData
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.methods import Method
from fedloom.methods.method import Lent
from fedloom.prediction import decision_of
from fedloom.storage.folder import CONFIG, SUMMARY, RunFolder
from fedloom.storage.saved import SavedModel, open_saved
from fedloom.storage.signature import reading
from fedloom.storage.store import MemoryStore
from fedloom.types import State

_KEPT = ("support", "chronological", "seed", "positive")
"""What of a run's division holds for a new client too."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A run as far as adaptation needs it."""

    problem: Problem
    method: Method
    state: State
    round: int
    seed: int
    saved: SavedModel | None = None
    experiment: Experiment | None = None

    def adapt(
        self,
        client: int | str | None,
        data: FederatedData | Table | None,
        *,
        steps: int | None = None,
        lr: float | None = None,
        support: int | None = None,
        parts: Lent | None = None,
        out: str | Path | None = None,
    ) -> Adapted:
        """The model, fitted to one of the run's clients, or to one of other data: the arguments of ``adapt``."""
        chosen = _own_client(self, client) if data is None else _new_client(self, data, client)
        evaluation = _how(self, chosen)
        evaluation = evaluation if steps is None else replace(evaluation, adapt_steps=steps)
        evaluation = evaluation if lr is None else replace(evaluation, adapt_lr=lr)
        evaluation = evaluation if parts is None else replace(evaluation, parts=parts)
        chosen = chosen.keeping(evaluation.fitted, support, Draw(self.seed))
        with MemoryStore() if self.saved is None else self.saved.memory() as store:
            done = adapt_client(
                self.problem,
                self.method,
                chosen,
                self.state,
                store,
                round=self.round,
                seed=self.seed,
                evaluation=evaluation,
                about=self.about,
            )
        return done if out is None else done.save(out)

    @property
    def about(self) -> dict[str, Any]:
        """Where the model comes from."""
        if self.saved is None:
            return {}
        run: dict[str, Any] = {"run": str(self.saved.folder.resolve()), "run_finished": self.saved.finished}
        files = RunFolder(self.saved.folder, None)
        if files.file(SUMMARY).is_file() and (at := decision_of(files.read_json(SUMMARY))) is not None:
            run["decision"] = {"threshold": at}
        return run | {"run_theta_sha256": self.saved.sha256, **({"notes": self.notes} if self.notes else {})}

    @property
    def notes(self) -> list[str]:
        """What does not fit: files of the folder, or settings and data that are not what the model was trained with."""
        if self.saved is None:
            return []
        changes = list[str]()
        if self.experiment is not None and self.saved.seal is not None:
            changes = self.saved.seal.changes(seal_of(self.experiment.setting()))
        since = [f"{self.saved.folder}: since the run, {line}" for line in changes]
        return [*self.saved.notes, *since]

    def read(self, changes: list[Override]) -> FederatedData | None:
        """The data that these settings name ("data.path"), read as the run's own were; None without any settings."""
        if not changes:
            return None
        experiment = self.experiment
        assert experiment is not None
        plan, known = experiment.data_plan, self.problem.data
        if not any(change.key in ("data.path", "data.name") for change in changes):
            raise ConfigError("say where the new client's data are: --data FILE (or the name of a data set)")
        own = experiment.settings.get(("data",)) or {}
        columns = {} if plan.path is None else {key: value for key, value in plan.options.items() if value is not None}
        values = columns | {key: own[key] for key in _KEPT if key in own}
        settings = Settings({"data": values}, dict(experiment.settings.places), experiment.settings.file)
        for change in changes:
            settings.set(change)
        given = settings.values["data"]
        if "path" in given:
            labels = known if plan.division.positive is None else experiment.table()
            given.setdefault("task", labels.task)
            if known.x_scale is None and given.get("scaling", "auto") == "auto":
                given["scaling"] = "none"  # the model reads numbers as they are
            if labels.classes and labels.task != "multilabel":
                given.setdefault("class_names", list(labels.classes))
        faults = Faults(settings)
        new = read_data(faults)
        faults.stop()
        assert new is not None
        if new.path is not None and plan.path is not None:
            new = replace(new, options={**new.options, "like": plan.path})
        table, division = new.load(self.seed), new.division
        if division.clients is None and table.groups is None:
            division = replace(division, clients=1)
        if "test" not in given:
            division = replace(division, test=0.0)
        return replace(new, division=division).federate(table, self.seed, like=known)


def adapt(
    run: str | Path | Run,
    client: int | str | None = None,
    *,
    data: FederatedData | Table | None = None,
    problem: Problem | None = None,
    method: Method | None = None,
    steps: int | None = None,
    lr: float | None = None,
    support: int | None = None,
    parts: Lent | None = None,
    out: str | Path | None = None,
    trust: bool = False,
) -> Adapted:
    """Fit a run's model to one client's few rows by the method's own rule, and say how good it is before and after.

    * ``run``: a run's folder, finished or not, or what ``train`` returned.
    * ``client``: a client's number or name, in the run's own data or in ``data``; none where there is only one.
    * ``data``: the rows of a new client, as a Table or as a federation; none: it is one of the run's clients.
    * ``problem``, ``method``: those of the run, for one that was made from Python, which its folder does not tell.
    * ``steps``, ``lr``: how many steps, and how large; none: as in the run's own evaluation, or as the method adapts.
    * ``support``: the model is fitted to so many rows at most, drawn by the run's seed; none: to all.
    * ``parts``: whose personal layers it begins with, where these are published: the "average" of all, or those that
      are "best" on the rows to adapt on; none: as in the run's own evaluation, by default its "own".
    * ``out``: the folder that the model is saved into; none: it is not saved.
    * ``trust``: import what the folder names by its path ("module:attribute"), though you have not signed it.

    The result has the adapted model and its metrics ``before`` and ``after``, on rows that it was not fitted to.

        data = fedloom.federate("digits", clients=10, target=0.2)
        problem, method = fedloom.Problem(data, fedloom.build_model("linear", data)), fedloom.FedAvg()
        run = fedloom.train(problem, method, rounds=2)
        adapted = fedloom.adapt(run, client=3, problem=problem, method=method, steps=1, lr=0.05)
        print(adapted.before["accuracy"], adapted.after["accuracy"])
    """
    how: dict[str, Any] = {"steps": steps, "lr": lr, "support": support, "parts": parts}
    return open_run(run, problem, method, trust).adapt(client, data, **how, out=out)


def open_run(
    run: str | Path | Run, problem: Problem | None = None, method: Method | None = None, trust: bool = False
) -> Trained:
    """What the run's folder tells, or what the caller gives beside it."""
    folder = run.folder if isinstance(run, Run) else Path(run)
    if folder is None:
        if problem is None or method is None:
            raise RunError("this run has no folder: give adapt its problem and its method too")
        assert isinstance(run, Run)
        return Trained(problem, method, run.state, int(run.summary["rounds"]), int(run.summary["seed"]))
    saved = open_saved(folder)
    config = RunFolder.open(saved.folder, write=False).read_toml(CONFIG)
    experiment = None
    if problem is None or method is None:
        if config.get("made_by") == "python":
            raise RunError(
                f"{saved.folder} was made from Python: its model and its data are not in the folder, so it cannot be "
                "rebuilt; call fedloom.adapt(run, client, problem=…, method=…) there"
            )
        with reading(saved.folder, trust):
            experiment = Experiment.load(saved.folder / CONFIG)
            problem, method = problem or experiment.problem(), method or experiment.method
    saved.refuse_other(problem.model)
    saved.refuse_other_numbers(problem.dtype, "its problem" if experiment is None else CONFIG)
    return Trained(problem, method, saved.state, saved.round, config.get("seed", 0), saved, experiment)


def _own_client(trained: Trained, client: int | str | None) -> Adaptee:
    data = trained.problem.data
    number = _number(data, client)
    return Adaptee.among(data, number, seen=bool((data.with_role(SOURCE) == number).any()))


def _new_client(trained: Trained, data: FederatedData | Table, client: int | str | None) -> Adaptee:
    """A client that the run has never seen: it comes after all that it has."""
    if isinstance(data, Table):
        alone = {} if data.groups is not None else {"clients": 1}
        known, experiment = trained.problem.data, trained.experiment
        positive = None if experiment is None or data.task == "binary" else experiment.data_plan.division.positive
        how: dict[str, Any] = {"test": 0.0, "allow_empty": True, "positive": positive, **alone}
        data = federate(data, seed=trained.seed, like=known, **how)
    number = 0 if client is None and data.clients == 1 else _number(data, client)
    return Adaptee.among(_as_trained(trained, data), number, seen=False, number=trained.problem.data.clients)


def _number(data: FederatedData, client: int | str | None) -> int:
    """The number of a client that is given by number or by name."""
    names = [data.label(k) for k in range(data.clients)] if data.names is not None else []
    if client is None:
        some = ", ".join(names[:5]) or f"0 to {data.clients - 1}"
        raise ConfigError(f"say which client of {data.name!r}: its name or its number, such as {some}")
    if str(client) in names:
        return names.index(str(client))
    if str(client).isdecimal() and int(client) < data.clients:
        return int(client)
    near = hint(str(client), names) if names else f"they are 0 to {data.clients - 1}"
    raise ConfigError(f"{data.name!r} has no client {str(client)!r}; {near}")


def _as_trained(trained: Trained, data: FederatedData) -> FederatedData:
    """New data as the model knows them: the same task, and classes by their names where the model has them."""
    known = trained.problem.data
    if data.task != known.task:
        raise DataError(f"{data.name!r} is a {data.task} task, but the model was trained for {known.task}")
    if data.task != "classification" or data.classes == known.classes:
        return data
    numbers = torch.tensor([known.classes.index(name) if name in known.classes else -1 for name in data.classes])
    y = numbers[data.y]
    strangers = [data.classes[label] for label in torch.unique(data.y[y < 0]).tolist()]
    if strangers:
        raise DataError(
            f"{data.name!r} has the class {', '.join(strangers)}, which the model does not know; it knows "
            f"{', '.join(known.classes)}"
        )
    return replace(data, y=y, classes=known.classes)


def _how(trained: Trained, client: Adaptee) -> Evaluation:
    """As the run's own evaluation adapts such clients, or else as usual."""
    usual = client.usual()
    if trained.experiment is None:
        return usual
    evaluations = [evaluation.resolved(trained.method) for evaluation in trained.experiment.evaluations]
    wanted = ("all", "source" if client.seen else "target")
    for evaluation in evaluations:
        named = {evaluation.split, evaluation.adapt_split}
        if evaluation.model == "adapted" and evaluation.on in wanted and named <= set(client.rows):
            return evaluation
    return replace(usual, metrics=evaluations[0].metrics) if evaluations else usual
