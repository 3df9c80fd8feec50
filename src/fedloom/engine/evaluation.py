"""Evaluation is an object: which model, on whom, on which rows, before or after adaptation."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeVar

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.execution.work import Evaluate, Evaluated
from fedloom.federation.data import SOURCE, TARGET, FederatedData
from fedloom.federation.metrics import error_of, from_counts, from_points, headline, higher_is_better, metrics_of
from fedloom.federation.ragged import Ints
from fedloom.methods.method import Lent, Method
from fedloom.types import Count, Positive, Vector

T = TypeVar("T")
VALIDATION = "validation"
"""The rows that something is chosen by, and what an evaluation on them is called."""
_ROWS_AT_ONCE = 5000  # an evaluation goes to the executor in pieces of about so many rows …
_CLIENTS_AT_ONCE = 1000  # … and at most so many clients, whatever the executor


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What is evaluated, and on what. Every choice that papers leave open is a field here.

    ``train`` takes one evaluation or several; the first is the main one.

        data = fedloom.federate("digits", clients=10, target=0.2)
        problem = fedloom.Problem(data, fedloom.build_model("linear", data))
        newcomers = fedloom.Evaluation("newcomers", model="adapted", on="target", adapt_steps=3, adapt_lr=0.1)
        run = fedloom.train(problem, fedloom.FedAvg(), rounds=2, evaluate=[fedloom.Evaluation(), newcomers])
        print(run.history[-1]["evaluations"]["newcomers"]["accuracy"]["weighted"])
    """

    name: str = "evaluation"
    """How it is called in the history."""
    model: Literal["auto", "global", "personal", "adapted"] = "auto"
    """The server's, each client's own, or one fitted to the client's few rows first; auto: the method's product."""
    on: Literal["source", "target", "all"] = "source"
    """Clients that train, clients that were never seen in training, or both."""
    split: str | None = None
    """The rows that are evaluated; none: test, and of adapted models query for target clients and test-query else."""
    every: Annotated[int, Ge(0)] = 1
    """Every so many rounds; 0: only after the last."""
    parts: Lent = "own"
    """Whose personal layers clients use, where these are published (``publish`` of the method): each its own; the
    "average" of all; of all those that are "best" on its own few rows (``adapt_split``); or all of them, in an
    "ensemble" whose probabilities are averaged, or by "vote"."""
    metrics: tuple[str, ...] | None = None
    """Names of metrics; "mae:NAME" is that of one target or label, "mae:*" that of each. None: the defaults for the
    task. The loss is always there."""
    adapt_split: str | None = None
    """The rows that an adapted model is fitted to; none: test-support where test-query is evaluated, and
    validation-support where validation-query is, else support. (fine-tune: train, and test is evaluated.)"""
    adapt_steps: Count | None = None
    """How many steps; none: as the method adapts, by default one."""
    adapt_lr: Positive | None = None
    """Their step size; none: the method's own, by default 0.01."""
    gradients: bool = False
    """Also measure how much the clients' gradients differ at the server's model, between clients and within them."""
    reference: Vector | None = None
    """Another model, such as the centrally trained one: adds the fidelity, the mean distance of the outputs to its."""

    @property
    def chooses(self) -> bool:
        """Whether it is made on rows that are there to choose by."""
        return (self.split or "").startswith(VALIDATION)

    def on_validation(self, method: Method) -> Evaluation:
        """The same on the validation rows: where the model is adapted, on those that it was not fitted to."""
        adapted = (method.evaluates if self.model == "auto" else self.model) == "adapted"
        split = f"{VALIDATION}-query" if adapted and method.adapts_on == "support" else VALIDATION
        return replace(
            self, name=VALIDATION, on="source", split=split, adapt_split=None, every=self.every or 1, gradients=False
        )

    def resolved(self, method: Method) -> Evaluation:
        """With "auto" replaced by what the method makes, and the rows named."""
        model = method.evaluates if self.model == "auto" else self.model
        known = replace(self, model=model)
        if model == "adapted" and method.adapts_on == "train" and self.on == "source" and self.adapt_split is None:
            known = replace(known, split=self.split or "test", adapt_split="train")
        return replace(known, split=known.evaluated, adapt_split=known.fitted)

    def told(self) -> dict[str, str]:
        """Which model on which rows of whom, once nothing is open any more: for a summary."""
        fitted = {"adapt_split": self.fitted} if self.fits else {}
        parts = {} if self.parts == "own" else {"parts": self.parts}
        return {"model": self.model, "on": self.on, "split": self.evaluated, **fitted, **parts}

    @property
    def fits(self) -> bool:
        """Whether it needs rows to which a model is fitted, or by which one is chosen."""
        return self.model == "adapted" or self.parts == "best"

    @property
    def evaluated(self) -> str:
        """The rows that are evaluated: never such that the clients were trained on, unless the user says so."""
        if self.split is not None:
            return self.split
        if self.model != "adapted":
            return "test"
        return "query" if self.on == "target" else "test-query"

    @property
    def fitted(self) -> str:
        """The rows that an adapted model is fitted to."""
        if self.adapt_split is not None:
            return self.adapt_split
        return {"test-query": "test-support", "validation-query": "validation-support"}.get(self.evaluated, "support")

    def clients(self, data: FederatedData) -> Ints:
        """Who is evaluated: the chosen clients that have rows in the split; of parties that share them, the first."""
        if data.layout == "features":
            return np.zeros(int(data.splits[self.evaluated].sizes[0] > 0), dtype=np.int64)
        roles = {"source": (SOURCE,), "target": (TARGET,), "all": (SOURCE, TARGET)}[self.on]
        ids = torch.cat([data.with_role(role) for role in roles]).sort().values
        chosen: Ints = ids[data.splits[self.evaluated].sizes[ids] > 0].numpy()
        return chosen

    def work(self, clients: Ints, round: int) -> Evaluate:
        """What a worker is asked for, where each client's model follows from the server's state alone."""
        return Evaluate(
            clients,
            round,
            split=self.evaluated,
            model=self.model,
            metrics=self.metrics,
            adapt_split=self.fitted,
            adapt_steps=self.adapt_steps,
            adapt_lr=self.adapt_lr,
            lent=self.parts,
            reference=self.reference,
        )

    def check_parts(self, method: Method) -> None:
        """Refuses parts that nobody publishes."""
        if self.parts == "own":
            return
        if self.model == "global":
            raise ConfigError(
                f"{self.name}: parts = {self.parts!r}, but the server's model has no client's personal layers; set "
                "model = 'personal'"
            )
        if not method.publishes:
            raise ConfigError(
                f"{self.name}: parts = {self.parts!r}, but no client publishes its personal layers; set "
                "publish = true for a method with personal layers, or parts = 'own'"
            )

    def check(self, data: FederatedData) -> None:
        """Refuses what cannot be evaluated, before any work."""
        metrics_of(data, self.metrics)
        if data.layout == "features" and self.model in ("personal", "adapted"):
            raise ConfigError(
                f"{self.name}: model = {self.model!r}, but where clients hold columns only all of them together have a "
                "model; set model = 'global'"
            )
        if self.parts == "vote" and data.task == "regression":
            raise ConfigError(f"{self.name}: parts = 'vote', but numbers cannot be voted on; set parts = 'ensemble'")
        needed = [self.evaluated] + ([self.fitted] if self.fits else [])
        for split in needed:
            if split not in data.splits:
                known = ", ".join(data.splits)
                remedy = "" if "support" in data.splits else " (data.support = 0.5 makes support and query)"
                if split.startswith("validation"):
                    remedy = " (data.validation = 0.2 makes validation rows)"
                raise ConfigError(f"{self.name}: the data have no split {split!r}; they have {known}{remedy}")
        if self.on != "source" and len(data.with_role(TARGET)) == 0:
            raise ConfigError(f"{self.name}: on = {self.on!r}, but no client is a target; set data.target to a share")
        if len(self.clients(data)) == 0:
            share = "validation" if self.evaluated.startswith("validation") else "test"
            raise ConfigError(
                f"{self.name}: no {self.on} client has rows in the split {self.evaluated!r}; set data.{share} above 0, "
                "or choose another split"
            )


def watched(evaluations: Sequence[Evaluation]) -> Evaluation:
    """By which of the evaluations something is chosen: the first on validation rows, else the main one."""
    return next((evaluation for evaluation in evaluations if evaluation.chooses), evaluations[0])


@dataclass(frozen=True, eq=False)
class Verdict:
    """The values of each client, and what they come to."""

    clients: Ints
    rows: Tensor
    values: dict[str, Tensor]
    pooled: dict[str, float] = field(default_factory=dict)
    """Each metric of the rows of all clients together, as if one client had them."""
    counts: dict[str, Tensor] = field(default_factory=dict)
    """What the pooled values were worked out from: sums of counts, …"""
    points: dict[str, Tensor] = field(default_factory=dict)
    """… or, of metrics that need all rows at once, what was joined of these."""
    inexact: dict[str, float] = field(default_factory=dict)
    """Pooled values of rows in bins, and how far each may be from that of the rows themselves."""

    def without(self, names: Collection[str]) -> Verdict:
        """The same without the values of some metrics, which were asked for the sake of their counts."""

        def rest(values: dict[str, T]) -> dict[str, T]:
            return {name: value for name, value in values.items() if name not in names}

        return replace(self, values=rest(self.values), pooled=rest(self.pooled), inexact=rest(self.inexact))

    def summary(self) -> dict[str, dict[str, float]]:
        """For each metric the weighted mean, the plain mean, the spread over clients, the worst tenth; and pooled.

        A client for whom a metric means nothing (none of its labels is known, none of the rows has come yet) is left
        out; one whose model has become NaN is not.
        """
        diverged = torch.isnan(self.values["loss"])
        found = {}
        for name, value in self.values.items():
            counts = (self.rows > 0) & (diverged | ~torch.isnan(value))
            found[name] = summarise(value[counts], self.rows[counts], higher_is_better(name))
            if name in self.pooled:
                found[name]["pooled"] = self.pooled[name]
        return found


def headline_value(name: str, statistics: Mapping[str, float]) -> float:
    """A metric where there is room for one number: pooled where it is no mean over rows, else weighted by rows."""
    return statistics.get(headline(name), statistics["weighted"])


def summarise(values: Tensor, rows: Tensor, higher: bool) -> dict[str, float]:
    """Weighted by rows, plain, the spread, the mean of the worst tenth of clients, and the worst."""
    if len(values) == 0:
        return {**dict.fromkeys(("weighted", "mean", "std", "worst_tenth", "min", "max"), math.nan), "clients": 0}
    worst_first = torch.sort(values, descending=not higher).values
    tenth = worst_first[: max(1, math.ceil(len(values) / 10))]
    weights = rows.double() / rows.sum()
    return {
        "weighted": float((weights * values).sum()),
        "mean": float(values.mean()),
        "std": float(values.std(correction=0)),
        "worst_tenth": float(tenth.mean()),
        "min": float(values.min()),
        "max": float(values.max()),
        "clients": len(values),
    }


def pieces(clients: Ints, rows: Ints) -> list[Ints]:
    """The clients in consecutive groups of bounded size: the same groups under every executor."""
    ends = np.cumsum(rows)
    group = ends // _ROWS_AT_ONCE + np.arange(len(clients)) // _CLIENTS_AT_ONCE
    cuts = np.flatnonzero(np.diff(group)) + 1
    return [part for part in np.split(clients, cuts) if len(part)]


def collect(clients: Ints, parts: list[Evaluated]) -> Verdict:
    """The pieces' results as one."""
    names = parts[0].values
    values = {name: torch.cat([part.values[name] for part in parts]) for name in names}
    counts = {name: torch.stack([part.sums[name] for part in parts]).sum(0) for name in parts[0].sums}
    points = {name: torch.cat([part.points[name] for part in parts]) for name in parts[0].points}
    pooled = {name: from_counts(name, own) for name, own in counts.items()}
    pooled |= {name: from_points(name, own) for name, own in points.items()}
    inexact = {name: error for name, own in counts.items() if (error := error_of(name, own)) > 0}
    rows = torch.cat([part.counts for part in parts])
    return Verdict(clients, rows, values, pooled, counts, points, inexact)
