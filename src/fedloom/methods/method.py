"""The contract: what a method says about the server, about one client, and about what travels between them."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Literal, get_type_hints

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.client import Client
from fedloom.federation.losses import Labels
from fedloom.federation.model import Slice
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.federation.replies import Reduce, Replies
from fedloom.federation.schedules import is_schedule
from fedloom.fields import unfit_fields
from fedloom.register import hint
from fedloom.types import Memory, Message, State, Vector

Ints = npt.NDArray[np.int64]
Layout = Literal["rows", "features", "pooled"]
Product = Literal["global", "personal", "adapted"]
ScheduleName = Literal["rounds", "async"]
MEAN_OF_MODELS = "the mean of the clients' models"
"""What a server hands out that has no model but those of its clients."""
Lent = Literal["own", "average", "best", "ensemble", "vote"]
"""Whose personal part a client uses: its own, or what others have published of theirs."""


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


@dataclass(frozen=True, eq=False)
class Relations:
    """How clients are related, as a server knows it."""

    kind: str
    """What the numbers are, in a word or two."""
    matrix: Tensor
    """One number for each two clients by their ids, from −1 (opposite) over 0 (unrelated) to 1 (alike)."""


@dataclass(frozen=True)
class Wish:
    """How the user wants a client to adapt a model; None: as the method itself would."""

    lr: float | None = None
    """The step size."""
    steps: int | None = None
    """How many steps, or passes over the rows, where the method counts these."""
    split: str = "support"
    """The rows that the client adapts to."""


class Method(ABC):
    """A federated method, written for one client: what methods with a server and methods of nodes have in common.

    A subclass is a frozen dataclass: its fields are hyper-parameters and its functions are the paper's lines. It
    keeps nothing between calls. Server state, client memory and messages are plain dicts of tensors, so checkpoints,
    byte counts, channels, executors and deployment work for every method without knowing it.

    Vectors have shape (..., n). A leading axis, when there is one, is a stack of clients: arithmetic broadcasts over
    it, and a method cannot tell. Where clients of a stack fetched different states of the server, so has everything
    that they received; a number that was broadcast is then a column of shape (clients, 1).

    What a method can and needs is said by its properties. They belong to the instance, so that a method that wraps
    another can answer for it; where the answer never changes, a class attribute in the place of the property will do.

        method = fedloom.FedAvg(lr=0.1, epochs=2)
        print(method.layout, method.evaluates, method.default_rounds, method.exact)
    """

    if not TYPE_CHECKING:  # a type checker reads the dataclass

        def __new__(cls, *values, **settings):
            """Refuses a hyper-parameter that the method does not have in the words of the command line."""
            known = inspect.signature(cls.__init__).parameters
            if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
                known = settings
            for name in settings:
                if name not in known:
                    known = [parameter for parameter in known if parameter != "self"]
                    raise ConfigError(f"{cls.__name__} has no hyper-parameter {name!r}; {hint(name, known)}")
            return super().__new__(cls)

    @property
    def layout(self) -> Layout:
        """Which federation it works on: clients that hold rows; clients that hold columns of the same rows, while the
        server holds the labels ("features"); or one pool that holds all that the sources have."""
        return "rows"

    @property
    def default_rounds(self) -> int:
        """Rounds of an experiment that does not say how many."""
        return 50

    @property
    def default_dtype(self) -> Literal["float32", "float64"]:
        """The numbers of an experiment that does not say which."""
        return "float32"

    @property
    def default_model(self) -> str | None:
        """The network of an experiment that does not say which; None: what suits the data."""
        return None

    @property
    def default_schedule(self) -> ScheduleName:
        """Whether an experiment that does not say so waits for all who were asked, or takes replies as they arrive."""
        return "rounds"

    @property
    def default_buffer(self) -> int:
        """Replies that the server of such an asynchronous experiment gathers for a step."""
        return 1

    @property
    def needs_rounds(self) -> str | None:
        """Why its server cannot take replies that were made from different states of its own; None: it can."""
        return None

    @property
    def exact(self) -> bool:
        """Whether a lossy channel would break an invariant, so that it is refused."""
        return False

    @property
    def remembers(self) -> bool:
        """Whether its clients remember anything. Default: if it says with what they begin (``client_init``)."""
        return type(self).client_init is not Method.client_init

    @property
    def measures(self) -> bool:
        """Whether its clients have something to measure. Default: if it says what (``measure``)."""
        return type(self).measure is not Method.measure

    @property
    def per_row(self) -> tuple[str, ...]:
        """Keys of the memory that hold one entry for each of the client's rows; where rows keep arriving, those of the
        rows that were there stay with them, and new rows have zeros."""
        return ()

    @property
    def evaluates(self) -> Product:
        """Which model is the method's product, and so what is evaluated unless the user says otherwise."""
        return "global"

    @property
    def stand_in(self) -> str:
        """What is handed out in the place of a model that was trained for all, in words: a mean of clients' models,
        say. It is then not set beside these as if it were one. Empty: the server's model was trained for all."""
        return ""

    @property
    def publishes(self) -> bool:
        """Whether clients publish parts of their models, so that others can use them (``lent``)."""
        return False

    @property
    def instead(self) -> str | None:
        """In words, what clients that never took part use in the place of a model, or a part of one, that they have
        learnt for themselves; None: no client has such a thing."""
        return "the model that they would begin with" if self.evaluates == "personal" else None

    @property
    def starts_without(self) -> str | None:
        """What of an initial model that the user gives it does not begin with, and the remedy, in words; None: it
        begins with all of it."""
        return None

    @property
    def adapts_on(self) -> Literal["support", "train"]:
        """The rows of a client that trains to which it adapts a model that is evaluated then: a few that nobody trained
        on, or the very rows that it trains on. Who never trained has a support."""
        return "support"

    @property
    def local_batch(self) -> int | None:
        """Rows of one local step, which decides how many clients are computed together; None: all rows."""
        return None

    @property
    def by_round(self) -> bool:
        """Whether what its clients do goes by ``client.round``, so that who fetched in another round is not computed
        with them. Default: if one of its hyper-parameters is a schedule."""
        values = vars(self).values()
        return any(value.by_round if isinstance(value, Method) else is_schedule(value) for value in values)

    @property
    def needs_prior(self) -> bool:
        """Whether it cannot do without ``ctx.prior``, the model of an earlier run."""
        return False

    def client_init(self, client: Client, received: Message) -> Memory:
        """A client's memory at its first message; made on the client. Default: none."""
        return {}

    @abstractmethod
    def turn(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        """What a client does with what it received: its message, and its new memory, which holds once that was
        accepted. The two kinds of methods say it in their own words."""

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        """The memory once the message was accepted. ``sent`` is the message as the receiver decoded it, without the
        client's weight; ``inbox`` is what the client had received. Default: keep."""
        return memory

    def shown(self, state: State, lent: Lent = "own") -> State:
        """What of the server's state every client is shown to make its model of (``personal``, ``adapt``); with what
        others have published, if it is to use that. Default: all of it."""
        return state

    def shown_to_adapt(self, state: State) -> State:
        """What those who fit a model to their own rows (``adapt``) are shown beside that. Default: nothing."""
        return {}

    def shown_each(self, state: State, clients: Tensor) -> State:
        """What each of these clients is shown beside that, for itself alone: columns, one row a client. Default:
        nothing."""
        return {}

    def lent(self, client: Client, state: State, memory: Memory) -> Iterator[Memory]:
        """The memory of a client as if it had what others have published: one after the other, of what it is shown.
        Default: nobody publishes anything."""
        return iter(())

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        """The model that this client would use; ``state`` is what it is shown (``shown_to``)."""
        raise NotImplementedError(f"{type(self).__name__} has no models of single clients")

    def adapt(self, client: Client, state: State, memory: Memory, theta: Vector, wish: Wish) -> Vector:
        """How a client fits ``theta``, its ``personal`` model, to its own few rows before using it. Default: full
        gradient steps, where the user has no wish one of 0.01."""
        return client.sgd(theta, wish.lr or 0.01, None, steps=wish.steps or 1, split=wish.split)[0]

    def measure(self, client: Client, received: Message, memory: Memory) -> dict[str, Tensor]:
        """What only clients can measure, one number or one vector a client; summed for ``report``. Default: nothing."""
        return {}

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        """Scalars for the history, from the state and the sums of what clients measured. Default: the sums."""
        return {key: float(value) for key, value in sums.items()}

    def check(self, problem: Problem) -> None:
        """Refuse, before any work, settings that cannot be or do not fit the problem. Default: all fit."""
        return

    def done(self, state: State, figures: Mapping[str, float]) -> bool:
        """Whether the method has converged, by a rule of its own; the run then ends early. ``figures`` is what it
        reported last (``report``), empty before that. Default: never."""
        return False

    def work(self, rows: Ints) -> Ints | None:
        """Gradient evaluations of single rows that clients with so many rows do when asked; None: known only then.

        A simulation that knows when a client will be ready can compute many clients ahead of its clock.
        """
        return None


class ServerMethod(Method):
    """A method with a server: what it keeps and sends, what a client does, its step, and what that looks at.

    A subclass is a frozen dataclass, whose fields are the hyper-parameters.

        from dataclasses import dataclass

        @dataclass(frozen=True)
        class Halfway(fedloom.ServerMethod):
            lr: float = 0.1

            def client(self, client, received, memory):
                y, _ = client.sgd(received["x"], self.lr, batch=32, epochs=1)
                return {"dx": y - received["x"]}, memory

            def server(self, state, replies, ctx):
                return {"x": state["x"] + 0.5 * replies.mean("dx")}

        data = fedloom.federate("digits", clients=5)
        problem = fedloom.Problem(data, fedloom.build_model("linear", data))
        run = fedloom.train(problem, Halfway(), rounds=2)
    """

    @property
    def reduce(self) -> Reduce:
        """ "sum": for each key of the replies the server needs one sum over clients and nothing else, as a secure sum
        could give it; "each": it looks at single replies."""
        return "sum"

    @property
    def coordinatewise(self) -> bool:
        """Whether the server's step treats every coordinate of the model alike and by itself, so that it can be taken
        on a part of them, or by one client for coordinates of its own."""
        return False

    @property
    def per_client(self) -> tuple[str, ...]:
        """Keys of the server's state that hold one entry for each client, by id: they grow when clients join."""
        return ()

    @property
    def per_pair(self) -> tuple[str, ...]:
        """Keys of the server's state that hold one entry for each two clients, by both ids: they grow likewise."""
        return ()

    def welcome(self, state: State, ctx: Context) -> State:
        """The state once clients have joined, and those parts have grown by what ``server_init`` puts there: what
        depends on all clients at once is worked out again. Default: nothing does."""
        return state

    def relations(self, state: State) -> Relations | None:
        """How the clients are related, as far as the method knows or has learnt it; the summary of a run tells it, and
        a report draws it. Default: it does not know."""
        return None

    def shown(self, state: State, lent: Lent = "own") -> State:
        """What of the server's state every client is shown to make its model of (``personal``, ``adapt``); with what
        others have published, if it is to use that. Default: all but what the server keeps of single clients."""
        kept = {*self.per_client, *self.per_pair}
        return {key: value for key, value in state.items() if key not in kept} if kept else state

    def server_init(self, ctx: Context) -> State:
        """The server's state before the first round. Default: the model alone, as "x"."""
        return {"x": ctx.theta0}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        """What every selected client is sent. Default: the model, ``state["x"]``."""
        return {"x": state["x"]}

    def unicast(self, state: State, clients: Tensor) -> Message:
        """What each selected client is sent beside that: columns with one row a client. Default: nothing."""
        return {}

    @abstractmethod
    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        """One client's work: the reply, and its new memory, which holds only once the reply was accepted."""

    def weight(self, client: Client) -> Tensor | None:
        """What a client's reply counts for in means and sums over clients, shape (…, 1); None: all count alike.

        The client applies it to its reply, after clipping and before the reply travels.
        """
        return None

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

    def turn(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        return self.client(client, received, memory)


class NodeMethod(Method):
    """A method of nodes without a server: each sends to its neighbours and computes with what they sent.

    ``inbox`` has, for each key of the neighbours' last messages as they were decoded, a column (…, neighbours, …), and
    ``inbox["present"]`` (…, neighbours) says which places are filled: nodes of one stack may have unlike numbers of
    neighbours. The first inbox of a node, from which ``client_init`` makes its memory, has the initial model ("x").

        from dataclasses import dataclass

        @dataclass(frozen=True)
        class Gossip(fedloom.NodeMethod):
            lr: float = 0.1

            def client_init(self, client, received):
                return {"x": received["x"].expand(*client.n.shape[:-1], -1)}

            def node(self, client, inbox, memory):
                here, there = inbox["present"].unsqueeze(-1), inbox["x"]
                mean = (memory["x"] + (here * there).sum(-2)) / (1 + here.sum(-2))
                x, _ = client.sgd(mean, self.lr, batch=32, epochs=1)
                return {"x": x}, {"x": x}

            def personal(self, client, state, memory):
                return memory["x"]

        print(Gossip().evaluates)
    """

    @property
    def evaluates(self) -> Product:
        """Which model is the method's product: there is none but the nodes' own."""
        return "personal"

    @property
    def stand_in(self) -> str:
        """What is handed out in the place of a model for all."""
        return MEAN_OF_MODELS

    @abstractmethod
    def node(self, client: Client, inbox: Message, memory: Memory) -> tuple[Message, Memory]:
        """One node's work: the message to its neighbours, and its new memory, which holds once that was delivered."""

    def groups(self, neighbours: Sequence[Sequence[int]]) -> list[Ints]:
        """Which nodes act together, group after group in a round, by the neighbours of each. Default: all at once."""
        return [np.arange(len(neighbours))]

    def turn(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        return self.node(client, received, memory)


def shown_to(method: Method, client: Client, state: State) -> State:
    """What a client, or a stack of clients, is shown of the server's state to make its model of."""
    each = method.shown_each(state, torch.from_numpy(client.clients))
    return {**method.shown(state), **(each if client.stacked else {key: value[0] for key, value in each.items()})}


def check_parameters(method: Method, dtype: torch.dtype = torch.float64) -> None:
    """Refuses a hyper-parameter outside what its field's annotation, or a number of the model, allows.

    Constructors only store.
    """
    largest = torch.finfo(dtype).max
    for name, value, why in unfit_fields(method):
        raise ConfigError(f"{type(method).__name__}: {name} = {value!r} cannot be: {why}")
    for name, value in vars(method).items():
        if isinstance(value, int | float) and largest < abs(value) < math.inf:
            raise ConfigError(
                f"{type(method).__name__}: {name} = {value!r} cannot be: the largest number of the model is "
                f"{largest:.3g}"
            )
    for inner in inner_methods(type(method)):
        check_parameters(getattr(method, inner), dtype)


@cache
def inner_methods(cls: type[Method]) -> tuple[str, ...]:
    """The fields of a method that are methods themselves: those that it wraps."""
    hints = get_type_hints(cls)
    return tuple(f.name for f in fields(cls) if isinstance(hints[f.name], type) and issubclass(hints[f.name], Method))  # type: ignore[arg-type]
