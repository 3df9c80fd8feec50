"""FedU.

C. T. Dinh, T. T. Vu, N. H. Tran, M. N. Dao and H. Zhang, "A new look and convergence rate of federated multitask
learning with Laplacian regularization", 2021, Algorithm 1. https://arxiv.org/abs/2102.07148
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.batches import steps_of
from fedloom.federation.client import Client
from fedloom.federation.data import SOURCE
from fedloom.federation.graphs import Graph, in_words, nearest
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Replies
from fedloom.federation.schedules import rate_at
from fedloom.methods.method import MEAN_OF_MODELS, Context
from fedloom.methods.register import register
from fedloom.methods.training import LocalSteps
from fedloom.search import Search
from fedloom.types import Count, Memory, Message, NonNegative, State, Vector


@register("fedu", family="personalisation", paper="Dinh et al., 2021", declaration=".neighbours:FEDU")
@dataclass(frozen=True)
class FedU(LocalSteps):
    """A model for each client, pulled towards those of its neighbours in a graph of clients.

    min Σ f_k(w_k) + (η/2) Σ_{edges kl} a_kl ‖w_k − w_l‖², each edge counted once. All clients move at once: each trains
    on its own rows and then moves by −μRη Σ_l a_kl (w_k − w_l), μR being the way of its R local steps of size μ. The
    limit is off the minimum by an amount that grows with μR; with ``coupling = "along"`` the pull acts in every local
    step, and it is not (with full batches).

    The server keeps the model u_k that each client found last, and tells each client where its neighbours want it, from
    whatever it has heard of them; those who never answered do not count. What a client remembers of itself is what the
    server has decoded, so sampled, lost, late, old and quantised replies do not move the limit.
    """

    reduce = "each"
    evaluates: ClassVar[Literal["global", "personal"]] = "personal"
    stand_in = MEAN_OF_MODELS

    eta: Annotated[NonNegative, Search(1e-3, 10.0, log=True)] = 0.1
    """η, how much the differences between neighbours count beside the losses; 0: every client alone."""
    graph: str = "complete"
    """ "complete"; "nearest": each client and those whose models are nearest, once all have learnt alone for a while;
    edges, such as "0-1,1-2:0.5"; or a file of rows k,l,a or of the matrix of all a_kl."""
    edge_weight: NonNegative | None = None
    """a_kl of the graphs complete and nearest; none: 1/N and 1/(neighbours + 1), so that a group of clients that are
    all joined is held near its mean with the strength η."""
    neighbours: Count = 5
    """For the graph nearest: the other clients that each is joined with."""
    warm_up: Count = 10
    """For the graph nearest: the turns of a client before its neighbours are found."""
    coupling: Literal["after", "along"] = "after"
    """ "after": local steps, then a step towards the neighbours (the paper); "along": both in every local step."""

    def check(self, problem: Problem) -> None:
        sources = problem.data.with_role(SOURCE).tolist()
        if self.graph == "nearest" and self.neighbours >= len(sources):
            raise ConfigError(
                f"fedu: neighbours = {self.neighbours}, but there are {len(sources)} clients; choose 1 to "
                f"{len(sources) - 1}"
            )
        degree = 1.0 if self.edge_weight is None else self.edge_weight * len(sources)
        if self._given:
            graph = Graph.read(self.graph, problem.data.clients)
            parts, degree = graph.parts(sources), 2 * graph.degree(problem.data.clients)
            if len(parts) > 1:
                warnings.warn(
                    f"fedu: the graph has {len(parts)} parts that no edge connects, which learn apart: clients "
                    f"{in_words(parts)}",
                    stacklevel=1,
                )
        sizes = problem.data.splits["train"].sizes.numpy()[sources]
        way = rate_at(self.lr, 0) * int(np.max(steps_of(sizes, self.batch, self.epochs, self.steps), initial=0))
        if way * self.eta * degree > 2:
            warnings.warn(
                f"fedu: a step of μR·η = {way:.3g}·{self.eta:g} along a graph whose clients have edges of up to "
                f"{degree:.3g} in all goes beyond the neighbours, and may grow from round to round; lower eta or lr",
                stacklevel=1,
            )

    @property
    def _given(self) -> bool:
        return self.graph not in ("complete", "nearest")

    @property
    def per_client(self) -> tuple[str, ...]:
        return ("u", "turns", "near") if self.graph == "nearest" else ("u", "turns")

    def server_init(self, ctx: Context) -> State:
        clients = len(ctx.sizes)
        state = {
            "x": ctx.theta0,  # the mean of all u_k
            "u": ctx.theta0.new_zeros(clients, len(ctx.theta0)),
            "turns": torch.zeros(clients, dtype=torch.int64),  # 0: never answered, and u_k is nothing
        }
        if self.graph == "nearest":
            state["near"] = torch.full((clients, self.neighbours), -1)
        elif self._given:
            graph = Graph.read(self.graph, clients)
            state |= {"ends": graph.ends, "a": graph.weight}
        return state

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {}

    def unicast(self, state: State, clients: Tensor) -> Message:
        """Where its neighbours want each client, u_k − η Σ_l a_kl (u_k − u_l); a new one begins at the mean of all."""
        towards = (state["u"] - self.eta * self._differences(state))[clients]
        return {"towards": torch.where(state["turns"][clients, None] > 0, towards, state["x"])}

    def _differences(self, state: State) -> Tensor:
        """Σ_l a_kl (u_k − u_l) of each client, over those l that ever answered."""
        u, known = state["u"], state["turns"] > 0
        if self.graph == "complete":
            count = int(known.sum())
            a = self.edge_weight if self.edge_weight is not None else 1 / max(count, 1)
            return a * (count * u - u.sum(0))
        if self._given:
            return Graph(state["ends"], state["a"]).among(known).differences(u)
        a = self.edge_weight if self.edge_weight is not None else 1 / (self.neighbours + 1)
        pairs = ((k, j) for k, row in enumerate(state["near"].tolist()) for j in row if j >= 0)
        return Graph.of((k, j, a) for k, j in {(min(pair), max(pair)) for pair in pairs}).differences(u)

    def client_init(self, client: Client, received: Message) -> Memory:
        none = torch.zeros_like(received["towards"][..., :1])
        return {"u": received["towards"], "held": none, "way": none}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        u, lr = memory["u"], self.rate(client)  # μ
        pull = u - received["towards"]  # η Σ_l a_kl (u_k − u_l)
        w, shift = (u - memory["way"] * pull, None) if self.coupling == "after" else (u, pull)
        new, R = client.sgd(w, lr, self.batch, self.epochs, self.steps, shift=shift)
        return {"du": new - memory["held"] * u}, {**memory, "way": (lr * R).expand_as(memory["way"])}

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        u = memory["held"] * memory["u"] + sent["du"]  # u_k, as the server decoded it
        return {"u": u, "held": torch.ones_like(memory["held"]), "way": memory["way"]}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        who = replies.clients
        u = state["u"].index_add(0, who, replies.each("du"))
        turns = state["turns"].index_add(0, who, torch.ones_like(who))
        new = {**state, "u": u, "turns": turns, "x": u.sum(0) / (turns > 0).sum()}
        return {**new, "near": self._neighbours(state["near"], u, turns)} if self.graph == "nearest" else new

    def _neighbours(self, near: Tensor, u: Tensor, turns: Tensor) -> Tensor:
        """Those of the clients that have learnt long enough; once found, they stay."""
        ready = torch.nonzero(turns >= self.warm_up).flatten()
        fresh = ready[near[ready, 0] < 0]
        if len(ready) <= self.neighbours or not len(fresh):
            return near
        return near.index_copy(0, fresh, nearest(u, fresh, ready, self.neighbours))

    def shown_each(self, state: State, clients: Tensor) -> State:
        return self.unicast(state, clients)

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        if self.coupling == "along":
            return memory["u"]
        return memory["u"] - memory["way"] * (memory["u"] - state["towards"])  # w_k
