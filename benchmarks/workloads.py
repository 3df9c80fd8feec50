"""What is measured: four federations of random data, each trained with FedAvg for one local epoch a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from fedloom.federation.data import FederatedData
from fedloom.federation.ragged import Ragged

CHUNK = 1 << 22
"""Numbers that are drawn at a time, so that the temporary arrays of set-up stay small."""


@dataclass(frozen=True)
class Workload:
    """One federation and how it is trained; both competitors read everything from here."""

    name: str
    title: str
    network: Literal["mlp", "lenet", "linear"]
    shape: tuple[int, ...]
    outputs: int
    clients: int
    samples: int
    per_round: int
    batch: int
    lr: float = 0.05

    @property
    def rows(self) -> int:
        """The samples of all clients together."""
        return self.clients * self.samples

    @property
    def samples_per_round(self) -> int:
        """How many samples one round trains on: one local epoch of every chosen client."""
        return self.per_round * self.samples

    def tensors(self) -> tuple[Tensor, Tensor]:
        """The rows of all clients, drawn in place: client i owns the i-th run of ``samples`` rows."""
        random = torch.Generator().manual_seed(1)
        teacher = torch.randn(prod(self.shape), self.outputs, generator=random)
        x = torch.empty(self.rows, *self.shape)
        y = torch.empty(self.rows, 1) if self.outputs == 1 else torch.empty(self.rows, dtype=torch.int64)
        step = CHUNK // prod(self.shape)
        for rows, labels in zip(x.split(step), y.split(step), strict=True):
            rows.normal_(generator=random)
            scores = rows.flatten(1) @ teacher
            labels.copy_(scores > 0 if self.outputs == 1 else scores.argmax(1))
        return x, y

    def data(self) -> FederatedData:
        """The same rows as a federation."""
        x, y = self.tensors()
        none = torch.zeros(self.clients, dtype=torch.int64)
        return FederatedData(
            name=self.name,
            x=x,
            y=y,
            task="binary" if self.outputs == 1 else "classification",
            splits={"train": Ragged.contiguous(none + self.samples), "test": Ragged.contiguous(none)},
            classes=() if self.outputs == 1 else tuple(str(label) for label in range(self.outputs)),
        )


def network(workload: Workload) -> nn.Module:
    """The model of a workload as a plain module, with the same first weights every time."""
    torch.manual_seed(0)
    if workload.network == "mlp":
        return nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, workload.outputs))
    if workload.network == "linear":
        return nn.Linear(workload.shape[0], workload.outputs)
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, workload.outputs),
    )


def loss_of(workload: Workload) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of a workload as a plain module."""
    return nn.BCEWithLogitsLoss() if workload.outputs == 1 else nn.CrossEntropyLoss()


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", "784-100-10 MLP, 100 clients of 600", "mlp", (784,), 10, 100, 600, 10, 32),
        Workload("W2", "LeNet on 3x32x32, 100 clients of 500", "lenet", (3, 32, 32), 10, 100, 500, 10, 32),
        Workload("W3", "logistic regression, 10,000 clients of 20", "linear", (20,), 1, 10_000, 20, 100, 10),
        Workload("W4", "logistic regression, 1,000,000 clients of 20", "linear", (20,), 1, 1_000_000, 20, 100, 10),
    )
}

IN_FLIGHT = {
    workload.name: workload
    for workload in (
        Workload("A1", "784-100-10 MLP, 200 clients of 600, 100 at a time", "mlp", (784,), 10, 200, 600, 100, 32),
        Workload("A2", "64-100-10 MLP, 200 clients of 60, 100 at a time", "mlp", (64,), 10, 200, 60, 100, 10),
    )
}
"""What is run with and without waiting."""
