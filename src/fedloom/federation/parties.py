"""A party of a vertical federation: its columns of the rows that all share, and its regularised least squares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedloom.errors import DataError
from fedloom.federation.regularisers import ElasticNet, Regulariser
from fedloom.federation.solvers import Spectrum, linear_layer
from fedloom.types import Vector

if TYPE_CHECKING:
    from fedloom.federation.client import Client
    from fedloom.federation.problem import Problem

_STEPS = 10_000  # of the accelerated proximal gradient method, at most


@dataclass(frozen=True, eq=False)
class Party:
    """A client's block A of the training rows, and its spectrum."""

    a: Tensor
    spectrum: Spectrum

    @staticmethod
    def of(problem: Problem, client: int) -> Party:
        """From the client's own columns alone."""
        assert problem.data.blocks is not None
        rows = problem.data.splits["train"][client]
        a = problem.x[rows].flatten(1)[:, problem.data.blocks.columns[client]].contiguous()
        return Party(a, Spectrum.of(a, a.new_zeros(len(a), 1)))

    def numbers(self) -> int:
        """How much memory it takes."""
        return self.a.numel() + self.spectrum.numbers()

    def fit(self, b: Tensor, rho: float, penalty: Regulariser, start: Tensor) -> Tensor:
        """argmin (ρ/2)‖Ax − b‖² + g(x), to rounding; x and b have a column for each output."""
        g = self.a.T @ b
        if isinstance(penalty, ElasticNet) and penalty.absolute == 0:
            return self.spectrum.ridge(g, penalty.square / rho)
        return self._accelerated(g, rho, penalty, start)

    def _accelerated(self, g: Tensor, rho: float, penalty: Regulariser, x: Tensor) -> Tensor:
        """Proximal gradient steps of 1/(largest eigenvalue), with a momentum that begins anew whenever it misleads."""
        bound = float(self.spectrum.values.amax()) if self.spectrum.values.numel() else 0.0
        if bound == 0:
            return penalty.prox(torch.zeros_like(x), 0.0)
        step, y, t = 1 / bound, x, 1.0
        enough = 4 * torch.finfo(x.dtype).eps
        for _ in range(_STEPS):
            there = penalty.prox(y - step * (self.spectrum.bend(y) - g), step / rho)
            moved = there - x
            still = bool((moved.abs() <= enough * there.abs().clamp(min=1)).all())
            if still and t == 1.0:
                return there
            if still or bool(((y - there) * moved).sum() > 0):
                y, t = there, 1.0
            else:
                ahead = (1 + (1 + 4 * t * t) ** 0.5) / 2
                y, t = there + (t - 1) / ahead * moved, ahead
            x = there
        return x


def fit(client: Client, b: Tensor, rho: float | Tensor, penalty: Regulariser, start: Tensor) -> Tensor:
    """argmin (ρ/2)‖A_i x − b‖² + g(x) of each client; x has shape (…, width, outputs), with zeros beyond its block."""
    found = torch.zeros_like(start)
    targets, starts, places = (value if client.stacked else value[None] for value in (b, start, found))
    for i, party in enumerate(_parties(client)):
        width = party.a.shape[1]
        places[i, :width] = party.fit(targets[i], float(rho), penalty, starts[i, :width])
    client.evaluations += client.sizes()
    return found


def scores(client: Client, x: Tensor) -> Tensor:
    """A_i x of each client: its share of the outputs for the training rows, shape (…, rows, outputs)."""
    weights = x if client.stacked else x[None]
    found = torch.stack([party.a @ w[: party.a.shape[1]] for party, w in zip(_parties(client), weights, strict=True)])
    return found if client.stacked else found[0]


def part(client: Client, x: Tensor) -> Vector:
    """The weights of each client's block at their places in θ, and zeros elsewhere."""
    problem = client.problem
    layer = linear_layer(problem)
    assert layer is not None
    assert problem.data.blocks is not None
    weights = x if client.stacked else x[None]
    theta = x.new_zeros(len(weights), problem.model.n)
    matrices = layer.weight.of(theta)
    for i, number in enumerate(client.clients):
        columns = problem.data.blocks.columns[number]
        matrices[i][:, columns] = weights[i, : len(columns)].T
    return theta if client.stacked else theta[0]


def predict_together(problem: Problem, theta: Vector, parties: Mapping[str, object]) -> Tensor:
    """Predict with the model of a vertical federation: every party brings its own columns of the new rows.

    * ``problem``: the problem that the model was trained on. ``theta``: the model, ``run.theta``.
    * ``parties``: for each client, by its name or number, its columns of the same rows in the same order.

    The result has the outputs of each row: the sum of the parties' shares and of the server's bias. So no party can be
    left out.

        data = fedloom.federate("digits", clients=2, partition="features")
        problem = fedloom.Problem(data, fedloom.build_model("linear", data))
        run = fedloom.train(problem, fedloom.SharingADMM(), rounds=2)
        columns = {data.label(k): data.x[:3].flatten(1)[:, data.blocks.columns[k]] for k in range(2)}
        print(fedloom.predict_together(problem, run.theta, columns).shape)
    """
    data = problem.data
    if data.blocks is None:
        raise DataError(f"the clients of {data.name!r} hold rows, not columns: any of them predicts alone")
    blocks = dict(zip(map(data.label, range(data.clients)), data.blocks.columns, strict=True))
    for name, columns in blocks.items():
        if name not in parties:
            raise DataError(
                f"party {name!r} is missing, and with it {len(columns)} of the {data.x[0].numel()} columns: a "
                f"prediction is the sum over all parties ({', '.join(blocks)}); ask it for its rows"
            )
    strangers = [name for name in parties if name not in blocks]
    if strangers:
        raise DataError(f"{strangers[0]!r} is no party of {data.name!r}; its parties are {', '.join(blocks)}")
    brought = {name: torch.as_tensor(np.asarray(parties[name]), dtype=problem.dtype) for name in blocks}
    rows = {name: len(part) for name, part in brought.items()}
    x = torch.zeros(next(iter(rows.values())), data.x[0].numel(), dtype=problem.dtype)
    for name, columns in blocks.items():
        if brought[name].shape != (len(x), len(columns)):
            raise DataError(
                f"party {name!r} brings an array of shape {tuple(brought[name].shape)}; it holds {len(columns)} "
                f"columns, and all must bring the same rows ({', '.join(f'{n}: {k}' for n, k in rows.items())})"
            )
        x[:, columns] = brought[name]
    one = torch.zeros(len(x), dtype=torch.int64)  # all parties together are as one client
    x = x if data.x_scale is None else data.x_scale.scaled(x, one).to(problem.dtype)
    out = problem.model(theta, x)
    return out if data.y_scale is None else data.y_scale.original(out, one).to(problem.dtype)


def _parties(client: Client) -> list[Party]:
    cache, problem = client.problem.parties, client.problem
    return [cache.get(int(number), partial(Party.of, problem, int(number))) for number in client.clients]
