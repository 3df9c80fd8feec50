"""What is to be learnt: the clients' data, a model, a loss."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.errors import ConfigError, DataError
from fedloom.federation.client import Client
from fedloom.federation.coordinates import Design
from fedloom.federation.data import FederatedData
from fedloom.federation.dual import design_of
from fedloom.federation.kernels import kernel_for
from fedloom.federation.losses import ClassWeights, loss_for, weighted
from fedloom.federation.model import Model, check_fit
from fedloom.federation.parties import Party
from fedloom.federation.ragged import Window
from fedloom.federation.randomness import Draw
from fedloom.federation.solvers import Cache, Spectrum
from fedloom.types import Vector

_STACK_FLOPS = 8e7  # a step of a stack should do about this much, so that the cost of starting an operation is small
_STACK_NUMBERS = 2_000_000  # … but its weights should stay near the cache
_STACK_MOST = 1024


class Problem:
    """Minimise Σ_i p_i f_i(θ), f_i being the mean loss of client i; or find a good θ_i for each client.

    * ``data``: the clients' rows. ``model``: what is trained on them.
    * ``loss``: the name of the loss; "auto": the default for the task.
    * ``dtype``: the numbers of model, data and messages.
    * ``class_weights``: what a row counts for by its class: "balanced" (all classes count the same, by the training
      rows of all clients), a list of numbers, or numbers by the classes' names. None: all rows count the same.

        data = fedloom.federate("digits", clients=5)
        problem = fedloom.Problem(data, fedloom.build_model("linear", data))
        client = problem.client(3)
        print(client.n, client.loss(problem.model.init(seed=0)))
    """

    def __init__(
        self,
        data: FederatedData,
        model: Model,
        loss: str = "auto",
        dtype: torch.dtype = torch.float32,
        class_weights: ClassWeights | None = None,
    ) -> None:
        if not isinstance(data, FederatedData):
            raise ConfigError(f"a Problem is of data and a model, not of {data!r}; make data with fedloom.federate")
        if not isinstance(model, Model):
            raise ConfigError(f"{type(model).__name__!r} is no Model; make one with fedloom.build_model(…, data)")
        self.loss = weighted(loss_for(data.task, loss), class_weights, data)
        self.model = model
        self.dtype = dtype
        self.data = replace(data, x=_cast(data.x, dtype), y=_cast(data.y, dtype))
        _refuse_infinite(self.data)
        check_fit(model, self.x[:2], data.outputs, dtype)
        self.kernel = kernel_for(model, self.loss, dtype, self.x[:1], self.y[:1])
        self._forget()

    def __repr__(self) -> str:
        return f"Problem({self.data!r}, {self.model!r}, loss {self.loss.name!r}, {self.dtype})"

    def __getstate__(self) -> dict[str, Any]:
        """Without the kernel and what was worked out for it: they belong to one process."""
        return {
            key: value for key, value in self.__dict__.items() if key not in ("kernel", "spectra", "parties", "_design")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.kernel = kernel_for(self.model, self.loss, self.dtype, self.x[:1], self.y[:1])
        self._forget()

    def _forget(self) -> None:
        """Begin anew with what solvers work out once for each client of this process."""
        self.spectra: Cache[Spectrum] = Cache()
        self.parties: Cache[Party] = Cache()
        self._design: tuple[int, Design] | None = None

    @property
    def design(self) -> Design:
        """The features of all rows as methods in the dual read them: where they are, which sharing them changes."""
        place = self.x.data_ptr()
        if self._design is None or self._design[0] != place:
            self._design = place, design_of(self)
        return self._design[1]

    @property
    def x(self) -> Tensor:
        """The features of all rows."""
        return self.data.x

    @property
    def y(self) -> Tensor:
        """The labels of all rows."""
        return self.data.y

    @property
    def path(self) -> str:
        """How clients compute with the model, and why, for people."""
        shape = tuple(self.x.shape[1:])
        if not self.kernel.stacks and self.model.single(shape) is None:
            return f"one client after the other: torch.func cannot run the loss {self.loss.name!r} in a stack"
        return self.model.path(shape)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """x and y at row numbers of any shape."""
        flat, x, y = rows.reshape(-1), self.x, self.y
        return (
            x.index_select(0, flat).view(*rows.shape, *x.shape[1:]),
            y.index_select(0, flat).view(*rows.shape, *y.shape[1:]),
        )

    def with_pool(self) -> Problem:
        """The same problem with one more client that holds all sources' training rows (for central training)."""
        return self.on(self.data.with_pool())

    def limited(self, rows: int) -> Problem:
        """The same problem on devices that can keep only so many training rows."""
        return self.on(self.data.limited(rows))

    def on(self, data: FederatedData) -> Problem:
        """The same problem on other rows, or on other clients of the same rows."""
        other = copy.copy(self)
        other.data = data
        other._forget()  # its clients have other rows
        if data.x is self.data.x:
            other._design = self._design
        return other

    def client(
        self,
        clients: int | npt.ArrayLike,
        draw: Draw | None = None,
        *,
        effort: npt.NDArray[np.float64] | None = None,
        budget: npt.NDArray[np.float64] | None = None,
        delay: npt.NDArray[np.float64] | None = None,
        round: int | None = None,
        window: Window | None = None,
    ) -> Client:
        """One client (an int), or a stack of clients (an array of ids); with a ``window`` they have these rows only."""
        ids = np.atleast_1d(np.asarray(clients, dtype=np.int64))
        draw = draw if draw is not None else Draw(0)
        now = draw.round if round is None else round
        return Client(self, ids, draw, np.ndim(clients) > 0, now, effort, budget, delay, window)

    def stack_size(self, batch: int | None) -> int:
        """How many clients to compute together: a function of model, data and method alone, never of the machine."""
        if not self.kernel.stacks:
            return 1
        rows = batch or int(self.data.splits["train"].sizes.double().mean().ceil())
        work = 6 * self.model.n * max(rows, 1)
        best = min(_STACK_FLOPS / work, _STACK_NUMBERS / self.model.n, _STACK_MOST)
        return max(1, int(best))


def fresh_model(problem: Problem, seed: int) -> Vector:
    """The model before anything is learnt, as its own initialisation draws it for the seed."""
    return problem.model.init(Draw(seed).key("model"), problem.dtype)


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype) if values.is_floating_point() else values


def _refuse_infinite(data: FederatedData) -> None:
    """NaN or infinity in a client's rows would silently become the model's; say which client has it."""
    bad = torch.cat([_not_finite(data.x), _not_finite(data.y, unknown=data.task == "multilabel")])
    if len(bad) == 0:
        return
    for split, owned in data.splits.items():
        rows = owned.every()
        for at in torch.nonzero(torch.isin(rows, bad)).flatten()[:1].tolist():
            client = int(torch.searchsorted(owned.offsets, at, right=True)) - 1
            raise DataError(
                f"row {int(rows[at])} of {data.name!r} ({split} of client {data.label(client)}) has a value that is "
                "not finite; fill or drop such rows before training"
            )


def _not_finite(values: Tensor, unknown: bool = False) -> Tensor:
    """The rows with NaN (unless that stands for unknown) or infinity; a quick look first, as most data have none."""
    none = torch.empty(0, dtype=torch.int64)
    if not values.is_floating_point() or values.numel() == 0:
        return none
    if bool(torch.isfinite(torch.stack(torch.aminmax(values))).all()):
        return none
    bad = torch.isinf(values) if unknown else ~torch.isfinite(values)
    return torch.nonzero(bad.reshape(len(bad), -1).any(1)).flatten()
