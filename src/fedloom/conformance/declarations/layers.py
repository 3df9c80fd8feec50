"""What is known of personal layers: on them every client is a federation of one, on the others all are one federation.

That is done here by hand, with the inner method's own functions on whole vectors, client by client: the server's state
and a state of each client, of which one part counts each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.conformance.answers import Invariant, Limit, Limits, OfRun, Same, accepted, greatest
from fedloom.conformance.claims import IDEAL, Claim, Declaration, Finding, Hardship, Subject
from fedloom.conformance.declarations.common import (
    BATCHES,
    DRIFT,
    EVERY_HARDSHIP,
    F64,
    ONE_STEP,
    WANDERS,
    WHO_ANSWERS,
    applied,
    unequal_problem,
    weights,
)
from fedloom.conformance.declarations.corrections import control_gap
from fedloom.conformance.declarations.courses import ROUNDS, TRAINING, Defaults, Passes
from fedloom.conformance.declarations.meta import FEDMETA_DEFAULTS, SMALL, meta_quadratic
from fedloom.conformance.drive import Walk, apart, product, recall, replies_to
from fedloom.conformance.problems import (
    Known,
    classification,
    least_squares,
    normalising,
    pictures,
    rows_in_order,
)
from fedloom.federation.client import Client
from fedloom.federation.data import FederatedData
from fedloom.federation.model import of_each
from fedloom.federation.networks import build_model
from fedloom.federation.problem import Problem, fresh_model
from fedloom.federation.randomness import Draw
from fedloom.methods import FedAvg, Local, Scaffold
from fedloom.methods.method import ServerMethod, Wish, shown_to
from fedloom.types import Memory, Message, State, Vector


def coordinates(problem: Problem, mine: str) -> Tensor:
    """True at the coordinates of the tensors whose names begin so."""
    sizes = [(name.startswith(mine), where.stop - where.start) for name, where in problem.model.slices.items()]
    return torch.cat([torch.full((size,), is_mine) for is_mine, size in sizes])


def mixed(one: State, other: State, where: Tensor) -> State:
    """Two states in one: where it is true as in the other."""
    n, found = len(where), dict(one)
    for key, value in one.items():
        if value.dim() and value.shape[-1] and value.shape[-1] % n == 0:
            found[key] = torch.where(where.repeat(value.shape[-1] // n), other[key], value)
    return found


@dataclass(eq=False)
class ByHand:
    """The federation of all and the federations of one, on whole vectors."""

    walk: Walk
    inner: ServerMethod
    mine: Tensor
    """Which coordinates are personal."""
    start: str

    def __post_init__(self) -> None:
        self.state = self.inner.server_init(self.walk.context(0))
        self.own: dict[int, State] = {}
        self.memory: dict[int, Memory] = {}
        self.evaluations = 0

    def first(self, client: int) -> Vector:
        """θ of which the personal part is the client's first."""
        problem, seed = self.walk.problem, self.walk.setting.seed
        if self.start == "sent":
            return self.walk.context(0).theta0
        if self.start == "common":
            return fresh_model(problem, seed)
        return problem.model.init(int(Draw(seed).words("personal part", client, 1)[0]), problem.dtype)

    def whole(self, client: int) -> State:
        """The state as this client has it."""
        return mixed(self.state, self.own[client], self.mine)

    def round(self, t: int, heard: list[int]) -> None:
        """Those who are heard work on the whole model; then come the step of the server and those of the clients."""
        inner, ctx, replies = self.inner, self.walk.context(t), []
        for i in heard:
            client = self.walk.problem.client(np.array([i]), Draw(self.walk.setting.seed, t))
            if i not in self.own:
                self.own[i] = inner.server_init(replace(ctx, theta0=self.first(i)))
            received = inner.broadcast(self.whole(i), torch.tensor([i]))
            before = self.memory[i] if i in self.memory else inner.client_init(client, received)
            reply, kept = self.work(client, received, before)
            self.memory[i] = inner.settle(client, kept, reply, received)
            self.evaluations += int(client.evaluations.sum())
            replies.append(reply)
            alone = replace(ctx, clients=1)
            mine = mixed(self.own[i], self.state, ~self.mine)
            self.own[i] = inner.server(mine, replies_to(inner, client, reply), alone)
        columns = {key: torch.cat([reply[key] for reply in replies]) for key in replies[0]}
        stack = self.walk.problem.client(np.array(heard), Draw(self.walk.setting.seed, t))
        self.state = inner.server(self.state, replies_to(inner, stack, columns), ctx)

    def work(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        """What a client does with the whole model."""
        return self.inner.client(client, received, memory)

    def adapt(self, client: Client, state: State, memory: Memory, theta: Vector, wish: Wish) -> Vector:
        """How a client fits its model to its few rows."""
        return self.inner.adapt(client, state, memory, theta, wish)

    def off(self) -> float:
        """How far the run is from here, in all that it shows."""
        walk, method, ids = self.walk, cast(Any, self.walk.setting.method), sorted(self.own)
        draw, found = Draw(7, walk.clocks.round), [float(abs(self.evaluations - walk.clocks.gradient_evaluations))]
        who = torch.tensor(ids)
        stack, memory = walk.problem.client(np.array(ids), draw), recall(walk, who)
        shown = shown_to(method, stack, walk.state)
        models = method.personal(stack, shown, memory)
        received = method.broadcast(walk.state, who)
        measured, sums = method.measure(stack, received, memory), dict[str, Tensor]()
        wishes = (Wish(), Wish(0.23), Wish(steps=3))
        adapted = [method.adapt(stack, shown, memory, models, wish) for wish in wishes]
        for at, i in enumerate(ids):
            client, state, own = walk.problem.client(i, draw), self.whole(i), self._row(i)
            theta = self.inner.personal(client, state, own)
            found.append(apart(models[at], theta))
            found += [
                apart(some[at], self.adapt(client, state, own, theta, wish))
                for wish, some in zip(wishes, adapted, strict=True)
            ]
            said = self.inner.measure(client, self.inner.broadcast(state, who[at : at + 1]), own)
            shared = {key: self._shared(value) for key, value in said.items()}
            found += [apart(measured[key][at], value) for key, value in shared.items()]
            sums = {key: value + sums.get(key, 0.0) for key, value in shared.items()}
        found += [apart(walk.state[key], self._shared(value)) for key, value in self.state.items()]
        if method.publish:
            there, turns = walk.state["published"], walk.state["published turns"]
            found += [apart(there[i], self._mine(own["x"])) for i, own in self.own.items()]
            found += [float(int((turns > 0).sum()) != len(self.own))]
        told, right = method.report(walk.state, sums), self.inner.report(self.state, sums)
        start = self.inner.server_init(walk.context(0))
        found.append(apart(walk.theta(), self.inner.model(mixed(self.state, start, self.mine))))
        same = told == right and method.done(walk.state, told) == self.inner.done(self.state, right)
        return max(*found, 0.0 if same else float("inf"))

    def _row(self, client: int) -> Memory:
        return {key: value[0] for key, value in self.memory[client].items()}

    def _mine(self, value: Tensor) -> Tensor:
        return of_each(value, len(self.mine), lambda each: each[..., self.mine])

    def _shared(self, value: Tensor) -> Tensor:
        n = len(self.mine)
        whole = value.dim() and value.shape[-1] and value.shape[-1] % n == 0
        return of_each(value, n, lambda each: each[..., ~self.mine]) if whole else value


def table() -> Problem:
    """Three classes, a small network, in float64."""
    return classification(F64)


def normal(dtype: torch.dtype = F64) -> Problem:
    """The same with a layer that normalises."""
    return normalising(nn.LayerNorm, dtype)


@dataclass(frozen=True, eq=False)
class AtHome(OfRun):
    """A round is torch's own training of each client's module, then the mean of all but the layer that normalises."""

    name: str
    method: Mapping[str, Any] = field(default_factory=lambda: {"lr": 0.3, "batch": None, "steps": 2})
    rounds: int = 3
    tolerance: float = 1e-10

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        with self.walking(subject, normalising(nn.BatchNorm1d), hardship) as walk:
            what = "distance from modules that torch trains"
            return greatest(self._distances(walk), self.rounds, self.tolerance, what)

    def _distances(self, walk: Walk) -> Iterator[float]:
        problem, method = walk.problem, cast(Any, walk.setting.method)
        clients = [problem.client(i) for i in range(problem.data.clients)]
        modules = [problem.model.built().to(problem.dtype).train() for _ in clients]
        share = torch.cat([client.n.reshape(1) for client in clients])
        share = share / share.sum()
        while True:
            walk.step()
            for client, module in zip(clients, modules, strict=True):
                rows = client.rows()
                for _ in range(method.steps):
                    own, loss = list(module.parameters()), nn.functional.cross_entropy(module(rows.x), rows.y)
                    with torch.no_grad():
                        for parameter, slope in zip(own, torch.autograd.grad(loss, own), strict=True):
                            parameter.sub_(slope, alpha=method.lr)
            with torch.no_grad():
                for several in zip(*(module.named_parameters() for module in modules), strict=True):
                    if not several[0][0].startswith("2."):
                        mean = torch.tensordot(share, torch.stack([one for _, one in several]), 1)
                        for _, one in several:
                            one.copy_(mean)
            found = product(walk, torch.arange(len(clients)))
            yield max(_far(problem, one, module) for one, module in zip(found, modules, strict=True))


def _far(problem: Problem, theta: Vector, module: nn.Module) -> float:
    """How far a model is from a module, in all of its tensors."""
    tensors = module.state_dict()
    return max(float((value - tensors[name]).abs().max()) for name, value in problem.model.views(theta).items())


@dataclass(frozen=True, eq=False)
class Features(OfRun):
    """Clients whose rows are s_i z + m_i, and whose first layer normalises, normalise them to the same."""

    name: str
    method: Mapping[str, Any] = field(default_factory=lambda: {"lr": 0.05, "batch": None, "steps": 200})
    rounds: int = 1
    tolerance: float = 2e-4
    """The ε of the layer, 10⁻⁵, is not the same part of every variance."""

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        with self.walking(subject, shifted(), hardship) as walk:
            problem, found = walk.problem, list[Tensor]()
            walk.step()
            for client, theta in enumerate(product(walk, torch.arange(3))):
                views, x = problem.model.views(theta), problem.client(client).rows().x
                spread = (views["1.running_var"] * (len(x) - 1) / len(x) + 1e-5).sqrt()
                found.append((x - views["1.running_mean"]) / spread)
            off = max(float((one - found[0]).abs().max()) for one in found)
            return Finding.within(off, self.tolerance, "greatest distance between features")


def shifted() -> Problem:
    """Three clients that hold the same rows, each shifted and scaled in its own way, with BatchNorm in front."""
    random = Draw(11).generator("shifted")
    z, y = torch.from_numpy(random.standard_normal((12, 4))), torch.from_numpy(random.integers(0, 3, 12))
    x = torch.cat([scale * z + shift for scale, shift in ((1.0, 0.0), (3.0, 5.0), (0.5, -2.0))])
    splits = rows_in_order(torch.tensor([12, 12, 12]))
    data = FederatedData("shifted", x, y.repeat(3), "classification", splits, classes=("a", "b", "c"))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = nn.BatchNorm1d(4), nn.Linear(4, 3)
    return Problem(data, build_model(nn.Sequential(nn.Flatten(), *layers)), dtype=F64)


@dataclass(frozen=True, eq=False)
class Federations(OfRun):
    """Every round is that of a federation of all on the shared layers, of federations of one on the personal ones."""

    name: str
    method: Mapping[str, Any] = field(default_factory=dict)
    mine: str = "3."
    """The names of the personal tensors begin so."""
    rounds: int = 4
    tolerance: float = 1e-10
    stands: tuple[str, ...] = ()
    problem: Callable[[], Problem] = table
    by: type[ByHand] = ByHand

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        with self.walking(subject, self.problem(), hardship) as walk:
            return greatest(self._distances(walk), self.rounds, self.tolerance, "distance from federations by hand")

    def _distances(self, walk: Walk) -> Iterator[float]:
        method = cast(Any, walk.setting.method)
        hand = self.by(walk, method.inner, coordinates(walk.problem, self.mine), method.start)
        for t in count():
            heard = accepted(walk, t).tolist()
            walk.step()
            if heard:
                hand.round(t, heard)
            if len(heard) < walk.problem.data.clients:  # those who are not heard may have worked all the same
                hand.evaluations = walk.clocks.gradient_evaluations
            yield hand.off() if hand.own else 0.0


def shared_gap(walk: Walk) -> float:
    """How far the server's c of SCAFFOLD is from the mean of the clients' c_i on the shared coordinates."""
    return control_gap(walk, ~coordinates(walk.problem, "3."))


BIAS = "1.bias"


def jointly(known: Known, method: Any, h: Tensor, c: Tensor) -> Tensor:
    """argmin Σ p_i F_i(w, b_i), ∇F_i = H_i θ − c_i: with each b_i put in, a linear equation in w is left."""
    mine, p = coordinates(known.problem, BIAS), weights(known, method)
    ww, wb, bw, bb = (h[:, rows][:, :, columns] for rows in (~mine, mine) for columns in (~mine, mine))
    through = wb @ torch.linalg.inv(bb)
    a = torch.einsum("i,ijk->jk", p, ww - through @ bw)
    w = torch.linalg.solve(a, p @ (c[:, ~mine] - applied(through, c[:, mine])))
    found = torch.empty_like(c)
    found[:, ~mine], found[:, mine] = w, torch.linalg.solve(bb, (c[:, mine] - bw @ w).unsqueeze(-1)).squeeze(-1)
    return found


def joint_optima(known: Known, method: Any) -> Tensor:
    """The same of the losses."""
    return jointly(known, method, known.hessians, applied(known.hessians, known.optima))


def joint_starts(known: Known, method: Any) -> Tensor:
    """The same of the losses after adaptation."""
    return jointly(known, method, *meta_quadratic(known, method))


def own_optima(known: Known, method: Any) -> Tensor:
    """Each client's own optimum."""
    return known.optima


ALL: dict[str, Any] = {"layers": "head", "start": "common"}
"""Of a linear model the last layer is all that there is."""
FALL = "exponential:0.3:0.8"
_TWO: dict[str, Any] = {"lr": FALL, "batch": 5, "epochs": 2}
_MOMENTUM: dict[str, Any] = {"lr": 0.1, "optimiser": "momentum", "steps": 3, "start": "common"}
_ADAM: dict[str, Any] = {"lr": 0.01, "optimiser": "adam", "batch": None, "layers": ["3.bi*"], "start": "sent"}


def averaging(layers: str, other: str, mine: str, theirs: str, unlike: str) -> tuple[Claim, ...]:
    """What is claimed of FedAvg with personal layers, by default these or, if so told, the others."""
    return (
        Federations("local training with layers of one's own", _TWO, mine, stands=WHO_ANSWERS),
        Federations("other layers and weights, momentum", {**_MOMENTUM, "layers": other, "weighting": unlike}, theirs),
        Federations("one bias that begins as the server's, Adam", _ADAM, "3.bias"),
        Federations("clients publish their layers", {**_TWO, "publish": True}, mine, stands=WHO_ANSWERS),
        joint("one full step finds the best common weights with a bias for each client", joint_optima, ONE_STEP),
    )


def joint(name: str, limit: Limits, given: Mapping[str, Any]) -> Limit:
    """Where least squares end whose bias is personal."""
    return Limit(name, least_squares, limit, {"lr": 0.6, "layers": BIAS, **given}, 400, 1e-10, WANDERS, own_optima)


alone = Same(
    "with all layers personal every client is alone", unequal_problem, {**DRIFT, **ALL}, Local(**DRIFT), tolerance=1e-13
)
AT_HOME = {**ROUNDS, "evaluates": "personal", "start": "own", "publish": False}


def meta_learning(own: Mapping[str, Any]) -> tuple[Claim, ...]:
    """What is claimed of FedMeta with personal layers."""
    first = {"alpha": 0.4, "lr": FALL, "gradient_norm": True}
    alone = {"lr": 0.01, "meta_step": "client", "optimiser": "adam", "batch": 3, "weighting": "query", "inner_steps": 2}
    differences = {"order": "difference", "delta": 0.7, "layers": "body", "start": "common"}
    heavy = {"server_optimiser": "momentum", "beta": 0.8, "nesterov": True, "order": "first", "weighting": "size"}
    adam = {"server_optimiser": "adam", "beta1": 0.8, "beta2": 0.9, "tau": 0.05, "v_start": 0.3, "squares": "mean"}
    return (
        Federations("the meta step with layers of one's own", {**first}, stands=WHO_ANSWERS),
        Federations("clients that step alone, by differences", {**alone, **differences}, "1."),
        Federations(
            "one bias that begins as the server's, momentum",
            {**heavy, "layers": "3.bi*", "start": "sent"},
            "3.bias",
            stands=("lost",),
        ),
        Federations("clients publish their layers", {**first, "publish": True}, stands=("lost",)),
        Federations(
            "a client has an Adam of its own", {**adam, "bias_correction": "flower", "lr": 0.05}, stands=("lost",)
        ),
        joint(
            "it finds the best common start with a bias for each client", joint_starts, {"alpha": 0.2, "lr": 0.8, **own}
        ),
    )


_FULL = {"start": "common"}
"""For the check that ids do not matter: who draws a part of its own draws it by its id."""

_META = {**FEDMETA_DEFAULTS, "evaluates": "adapted", "layers": "head", "start": "own", "publish": False}
_ADAPTS = {"alpha": 0.1, "adapt_steps": 1, "adapt_batch": None, "adapt_optimiser": "sgd"}
_SCAFFOLD = Scaffold(lr=0.2, batch=5, server_lr="exponential:1.0:0.8")
GONE = "it is gone once a reply was accepted, and is made anew with every reply"
EXCUSED = {
    **{f"memory home dx: {how}": GONE for how in ("not kept", "the neighbour's", "settled though lost")},
    "memory: moved by what was computed": "clients remember nothing that travels, so that nothing of it was coarsened",
    "done: never": "the inner method never says that it is done",
}
_META_EXCUSED = {**EXCUSED, "work: one more": "FedMeta does not say beforehand how much its clients work"}
PLAIN = {
    **EXCUSED,
    "adapt: by 0.01 in the place of its own step size": "that is FedAvg's own step size",
    "report: times 0.9": "FedAvg reports nothing",
}

FEDPER = Declaration(
    (
        *averaging("head", "body", "3.", "1.", "uniform"),
        alone,
        Passes(ALL),
        Defaults({**TRAINING, **AT_HOME, "layers": "head", "weighting": "size"}),
    ),
    BATCHES,
    _FULL,
    equivalent=PLAIN,
)
FEDBN = Declaration(
    (
        Federations("local training with layers of one's own", _TWO, "2.", stands=WHO_ANSWERS, problem=normal),
        Federations(
            "clients publish their layers", {**_TWO, "publish": True}, "2.", stands=WHO_ANSWERS, problem=normal
        ),
        Federations(
            "other layers and weights, momentum",
            {**_MOMENTUM, "layers": "head", "weighting": "uniform"},
            "4.",
            problem=normal,
        ),
        Federations(
            "one bias that begins as the server's, Adam", {**_ADAM, "layers": ["4.bi*"]}, "4.bias", problem=normal
        ),
        joint("one full step finds the best common weights with a bias for each client", joint_optima, ONE_STEP),
        alone,
        Passes(ALL),
        AtHome("BatchNorm stays at home, statistics and all"),
        Features("clients that see the same, shifted and scaled, find the same features"),
        Defaults({**TRAINING, **AT_HOME, "layers": "norm", "weighting": "size"}),
    ),
    BATCHES,
    _FULL,
    equivalent=PLAIN,
    table=normal,
    images=pictures,
)
LG_FEDAVG = Declaration(
    (
        *averaging("body", "head", "1.", "3.", "size"),
        alone,
        Passes(ALL),
        Defaults({**TRAINING, **AT_HOME, "layers": "body", "weighting": "uniform"}),
    ),
    BATCHES,
    _FULL,
    equivalent=PLAIN,
)
PERSONAL = Declaration(
    (
        *averaging("head", "body", "3.", "1.", "uniform"),
        alone,
        Federations("another method inside", {"inner": _SCAFFOLD}, stands=("lost",)),
        Invariant(
            "what SCAFFOLD's clients remember of the shared layers is what the server has seen of it",
            table,
            shared_gap,
            {"inner": _SCAFFOLD},
            8,
            stands=EVERY_HARDSHIP,
        ),
        Defaults({**AT_HOME, "layers": "head", "inner": FedAvg()}),
    ),
    BATCHES,
    _FULL,
    equivalent={  # what SCAFFOLD remembers does travel
        **{key: why for key, why in PLAIN.items() if key != "memory: moved by what was computed"},
        **{key.replace("dx", "dc"): why for key, why in PLAIN.items() if "dx" in key},
    },
)
FEDPER_MAML = Declaration(
    (*meta_learning({}), Defaults(_META)), SMALL, _FULL, divisible=False, equivalent=_META_EXCUSED
)
FEDPER_METASGD = Declaration(
    (
        *meta_learning({"learn_alpha": False}),
        Federations("step sizes that are not learnt", {"learn_alpha": False, "lr": 0.2}),
        Defaults({**_META, "learn_alpha": True}),
    ),
    SMALL,
    _FULL,
    divisible=False,
    equivalent=_META_EXCUSED,
)
FEDPER_AVGMETA = Declaration(
    (
        *averaging("head", "body", "3.", "1.", "uniform"),
        Federations(
            "clients adapt in their own way",
            {"alpha": 0.3, "adapt_steps": 2, "adapt_batch": 3, "adapt_optimiser": "momentum", "lr": 0.2},
        ),
        Defaults({**TRAINING, **AT_HOME, "evaluates": "adapted", "layers": "head", "weighting": "size", **_ADAPTS}),
    ),
    BATCHES,
    _FULL,
    equivalent={**EXCUSED, "report: times 0.9": "FedAvg reports nothing"},
)
