"""Clustered federated learning.

A. Ghosh, J. Chung, D. Yin and K. Ramchandran, "An efficient framework for clustered federated learning", NeurIPS 2020,
Algorithm 1 (IFCA). https://arxiv.org/abs/2006.04088. By weight vectors: M. Xie et al., "Multi-center federated
learning", 2020. https://arxiv.org/abs/2005.01026
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.client import Client
from fedloom.federation.data import SOURCE
from fedloom.federation.grouping import by_means, by_silhouette
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Reduce, Replies, Weighting
from fedloom.methods.method import Context
from fedloom.methods.register import register
from fedloom.methods.training import LocalTraining, Weighted
from fedloom.search import Search
from fedloom.types import Count, Memory, Message, Positive, State, Vector


@register("clustered", family="personalisation", paper="Ghosh et al., NeurIPS 2020", declaration=".groups:CLUSTERED")
@dataclass(frozen=True)
class Clustered(Weighted, LocalTraining):
    """A model for each group of clients; each client joins the group whose model fits it best (IFCA).

    Every client is sent the models of all groups, joins one of them (``by``) and trains its model; the server averages
    within groups. A group that nobody joined keeps its model; of models that fit equally well the first is taken. A
    client that never took part joins by the loss of its own training rows.

    It finds groups only from first models that are nearer to one group than to another. With ``init = "clients"`` all
    clients begin with one model, and the first step of the server divides what they found by k-means.
    """

    evaluates: ClassVar[Literal["global", "personal"]] = "personal"
    stand_in = "the model of the largest group"

    groups: Annotated[Count | None, Search(2, 6)] = 2
    """k, the number of groups; none: that with the best silhouette of what clients make of the first model, one where
    no silhouette is above 0.25."""
    max_groups: Count = 8
    """Where the number is chosen: at most so many."""
    by: Literal["loss", "weights"] = "loss"
    """A client joins the group whose model has the least loss on its training rows (IFCA), or the group whose model is
    nearest to the one that the client found last."""
    init: Literal["clients", "random"] = "clients"
    """The groups' first models: the means of what clients make of one model in the first round, divided by k-means; or
    the first model and, for further groups, that model and noise."""
    spread: Positive = 0.1
    """The standard deviation of that noise."""
    average: Literal["models", "gradients"] = "models"
    """ "models": the mean over the clients of the group; "gradients": their moves count as parts of all clients'."""
    reply: Literal["own", "all"] = "own"
    """ "own": a client sends its move and its group's number; "all": a row for each group, zeros but for its own, so
    that sums are enough and the server does not learn who is in which group, for k times the bytes."""
    weighting: Weighting = "uniform"
    """ "uniform": the plain mean (the paper); "size": n_k/Σn over the clients of the group that answered."""

    def check(self, problem: Problem) -> None:
        clients, groups = len(problem.data.with_role(SOURCE)), self.groups
        if groups is not None and groups > clients:
            raise ConfigError(
                f"clustered: groups = {groups}, but there are {clients} clients; choose at most {clients} groups"
            )
        if self.init == "random" and groups is None:
            raise ConfigError(
                "clustered: groups = none chooses their number by what clients make of one model, but init = 'random'; "
                "say how many groups, or set init = 'clients'"
            )
        if self.init == "clients" and self.reply == "all":
            raise ConfigError(
                "clustered: reply = 'all' shows the server sums alone, but init = 'clients' divides single models; set "
                "init = 'random' or reply = 'own'"
            )

    @property
    def needs_rounds(self) -> str | None:
        if self.init == "random":
            return None
        return "its server divides the models of one step into the first groups (init = 'random' has no need of that)"

    @property
    def reduce(self) -> Reduce:
        return "each" if self.reply == "own" else "sum"

    @property
    def per_client(self) -> tuple[str, ...]:
        return ("group",) if self.reply == "own" else ()

    def server_init(self, ctx: Context) -> State:
        k = self.groups or self.max_groups
        x = ctx.theta0.repeat(k, 1)
        if self.init == "random":
            noise = ctx.draw.generator("groups").standard_normal((k - 1, len(ctx.theta0)))
            x[1:] += self.spread * torch.from_numpy(noise).to(x.dtype)
        state = {
            "x": x,
            "count": torch.tensor(k if self.init == "random" else 0),  # 0: the first models are still to be found
            "members": torch.zeros(k, dtype=torch.float64),  # the share of each group in the last step
        }
        return {**state, "group": torch.full((len(ctx.sizes),), -1)} if self.reply == "own" else state

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"][: max(int(state["count"]), 1)]}

    def client_init(self, client: Client, received: Message) -> Memory:
        models = received["x"]
        j = self._fitting(client, models)
        group = torch.where(client.n > 0, j.unsqueeze(-1), -1)  # without rows nobody can tell
        return {"group": group, "w": _picked(models, j)} if self.by == "weights" else {"group": group}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        models = received["x"]
        j = self._joined(client, models, memory)
        theta = _picked(models, j)
        y, _ = self.train(client, theta)
        kept = {"group": j.unsqueeze(-1), "w": y} if self.by == "weights" else {"group": j.unsqueeze(-1)}
        if self.reply == "own":
            return {"dx": y - theta, "group": j.unsqueeze(-1)}, kept
        own = torch.nn.functional.one_hot(j, models.shape[-2]).to(y.dtype)
        return {"dx": own.unsqueeze(-1) * (y - theta).unsqueeze(-2), "in": own}, kept

    def _joined(self, client: Client, models: Tensor, memory: Memory) -> Tensor:
        """The group of each client."""
        if self.by == "loss":
            return self._fitting(client, models)
        return (models - memory["w"].unsqueeze(-2)).square().sum(-1).argmin(-1)

    def _fitting(self, client: Client, models: Tensor) -> Tensor:
        """The group whose model has the least loss, the first of equals."""
        with torch.no_grad():
            losses = [client.loss(models[..., j, :]) for j in range(models.shape[-2])]
        return torch.stack(losses, -1).argmin(-1)

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        if self.reply == "all":
            return {**state, **self._averaged(state["x"], replies.mean("dx"), replies.mean("in").double())}
        x, count, group = state["x"], state["count"], replies.each("group").flatten()
        if int(count) == 0 and len(group) >= (self.groups or 2):
            group, count, x = *self._divided(x[0] + replies.each("dx")), x[0].expand_as(x)
        own = torch.nn.functional.one_hot(group, len(x)).double()
        moves = torch.stack([replies.mean("dx", part) for part in own.T])
        share = replies.weights @ own / replies.weights.sum()
        known = state["group"].index_copy(0, replies.clients, group)
        return {"count": count, "group": known, **self._averaged(x, moves, share)}

    def _divided(self, found: Tensor) -> tuple[Tensor, Tensor]:
        """The groups of clients that made these models of one, and how many groups there are."""
        group = by_silhouette(found, self.max_groups) if self.groups is None else by_means(found, self.groups)
        return group, torch.tensor(self.groups or int(group.max()) + 1)

    def _averaged(self, x: Tensor, moves: Tensor, share: Tensor) -> State:
        """The groups' models after moves Σ_{i in j} w_i dx_i / Σ w_i, and the share that each group has of all."""
        by = share.clamp(min=torch.finfo(x.dtype).tiny).to(x.dtype).unsqueeze(-1)
        whole = moves / by if self.average == "models" else moves
        return {"x": x + torch.where(share.unsqueeze(-1) > 0, whole, 0), "members": share}

    def model(self, state: State) -> Vector:
        return state["x"][int(state["members"].argmax())]  # that of the largest group

    def shown_each(self, state: State, clients: Tensor) -> State:
        return {"group": state["group"][clients]} if self.reply == "own" else {}

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        ids = torch.from_numpy(client.clients)
        models = self.broadcast(state, ids)["x"]
        theta = _picked(models, self._joined(client, models, memory))
        last = memory["group"].flatten() if self.reply == "all" else state["group"].flatten()
        last = torch.where(last < 0, state["members"].argmax(), last)
        without_rows = models[last] if client.stacked else models[last[0]]  # as when the model is in use elsewhere
        return torch.where(client.n > 0, theta, without_rows)

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        return {"groups": float((state["members"] > 0).sum()), "largest_group": float(state["members"].max())}


def _picked(models: Tensor, j: Tensor) -> Vector:
    """Of models (…, k, n) that of the group of each client."""
    every = models.expand(*j.shape, *models.shape[-2:])
    return every.gather(-2, j[..., None, None].expand(*j.shape, 1, models.shape[-1])).squeeze(-2)
