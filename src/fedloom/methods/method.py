"""The contract: what a method says about the server, about one client, and about what travels between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.client import Client
from fedloom.federation.losses import Labels
from fedloom.federation.model import Slice
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.federation.replies import Replies
from fedloom.fields import unfit_fields
from fedloom.types import Memory, Message, State, Vector

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Context:
    """What a server knows without being told: the round, the clients, the model, and its own randomness."""

    round: int
    """t: how many steps the server has taken."""
    clients: int
    """N: how many clients can take part."""
    sizes: Tensor
    """Training rows of every client, by id, as the server was last told."""
    slices: dict[str, Slice]
    theta0: Vector
    draw: Draw
    sources: Tensor
    """The ids of the clients that can take part."""
    prior: Vector | None = None
    """θ_p: the model of an earlier run."""
    labels: Labels | None = None
    """The labels of the training rows, where the clients hold features and the server holds the labels."""


class Method(ABC):
    """A federated method, written for one client.

    A subclass is a frozen dataclass: its fields are hyper-parameters and its functions are the paper's lines. It
    keeps nothing between calls. Server state, client memory and messages are plain dicts of tensors, so checkpoints,
    byte counts, channels, executors and deployment work for every method without knowing it.

    Vectors have shape (..., n). A leading axis, when there is one, is a stack of clients: arithmetic broadcasts over
    it, and a method cannot tell. Where clients of a stack fetched different states of the server, so has everything
    that they received; a number that was broadcast is then a column of shape (clients, 1).
    """

    layout: ClassVar[Literal["rows", "features", "pooled"]] = "rows"
    """Which federation it works on: clients that hold rows; clients that hold columns of the same rows, while the
    server holds the labels; or one pool that holds all that the sources have."""
    default_rounds: ClassVar[int] = 50
    """Rounds of an experiment that does not say how many."""
    default_dtype: ClassVar[Literal["float32", "float64"]] = "float32"
    """The numbers of an experiment that does not say which."""
    default_schedule: ClassVar[Literal["rounds", "async"]] = "rounds"
    """Whether an experiment that does not say so waits for all who were asked, or takes replies as they arrive."""
    default_buffer: ClassVar[int] = 1
    """Replies that the server of such an asynchronous experiment gathers for a step."""
    needs_rounds: ClassVar[str | None] = None
    """Why its server cannot take replies that were made from different states of its own; None: it can."""
    reduce: ClassVar[Literal["sum", "each"]] = "sum"
    """"sum": the server needs only weighted sums of the replies; "each": it looks at single replies."""
    exact: ClassVar[bool] = False
    """True: a lossy channel would break an invariant, so it is refused."""
    per_row: ClassVar[tuple[str, ...]] = ()
    """Keys of the memory that hold one entry for each of the client's rows; where rows keep arriving, those of the rows
    that were there stay with them, and new rows have zeros."""
    evaluates: ClassVar[Literal["global", "personal", "adapted"]] = "global"
    """Which model is the method's product, and so what is evaluated unless the user says otherwise."""

    @abstractmethod
    def server_init(self, ctx: Context) -> State:
        """The server's state before the first round."""

    def client_init(self, client: Client, received: Message) -> Memory:
        """A client's memory at its first message; made on the client. Default: none."""
        return {}

    @abstractmethod
    def broadcast(self, state: State, clients: Tensor) -> Message:
        """What every selected client is sent."""

    def unicast(self, state: State, clients: Tensor) -> Message:
        """What each selected client is sent beside that: columns with one row a client. Default: nothing."""
        return {}

    @abstractmethod
    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        """One client's work: the reply, and its new memory, which holds only once the reply was accepted."""

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        """The memory once the reply was accepted. ``sent`` is the reply as the receiver decoded it. Default: keep."""
        return memory

    @abstractmethod
    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        """The server's step on the accepted replies."""

    def model(self, state: State) -> Vector:
        """θ: the model that the server would hand out. Default: ``state["x"]``.

        Where clients hold features it is the server's part of the model, the whole being the sum of it and of every
        client's ``personal``.
        """
        return state["x"]

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        """The model that this client would use. Default: the server's."""
        return self.model(state)

    def adapt(
        self, client: Client, state: State, theta: Vector, lr: float | None, steps: int | None, split: str
    ) -> Vector:
        """How a client fits a model to its own few rows before using it. Default: full gradient steps.

        ``lr`` and ``steps`` are the user's wish; None is the method's own choice, by default one step of 0.01.
        """
        return client.sgd(theta, lr or 0.01, None, steps=steps or 1, split=split)[0]

    def measure(self, client: Client, received: Message, memory: Memory) -> dict[str, Tensor]:
        """What only clients can measure, one number or one vector a client; summed for ``report``. Default: nothing."""
        return {}

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        """Scalars for the history, from the state and the sums of what clients measured. Default: the sums."""
        return {key: float(value) for key, value in sums.items()}

    def check(self, problem: Problem) -> None:
        """Refuse, before any work, settings that cannot be or do not fit the problem. Default: all fit."""
        return

    def done(self, state: State) -> bool:
        """Whether the method has converged, as it judges itself; the run then ends early. Default: never."""
        return False

    def work(self, rows: Ints) -> Ints | None:
        """Gradient evaluations of single rows that clients with so many rows do when asked; None: known only then.

        A simulation that knows when a client will be ready can compute many clients ahead of its clock.
        """
        return None

    @property
    def needs_prior(self) -> bool:
        """Whether it cannot do without ``ctx.prior``, the model of an earlier run. Default: no."""
        return False

    @property
    def local_batch(self) -> int | None:
        """Rows of one local step, which decides how many clients are computed together; None: all rows."""
        return getattr(self, "batch", None)


def check_parameters(method: Method) -> None:
    """Refuses a hyper-parameter outside what its field's annotation allows; constructors only store."""
    for name, value, why in unfit_fields(method):
        raise ConfigError(f"{type(method).__name__}: {name} = {value!r} cannot be: {why}")


def stateful(method: Method) -> bool:
    """Whether its clients remember anything."""
    return type(method).client_init is not Method.client_init
