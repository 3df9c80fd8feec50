"""The linear baseline of no cooperation: every client fits its own rows exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedloom.federation.client import Client
from fedloom.federation.replies import Replies
from fedloom.methods.fitting import LinearFit
from fedloom.methods.method import Context
from fedloom.methods.register import register
from fedloom.types import Memory, Message, State, Vector


@register("local-linear", family="baseline", declaration=".linear:LOCAL")
@dataclass(frozen=True)
class LocalLinear(LinearFit):
    """A linear model of each client's own rows, fitted exactly, no cooperation.

    A support vector machine, ridge regression or logistic regression, by the loss. A client sends nothing but the word
    that it is done, and one round in which it takes part is all that it needs.
    """

    evaluates: ClassVar[Literal["global", "personal"]] = "personal"
    stand_in = "the initial model"

    def client_init(self, client: Client, received: Message) -> Memory:
        begun = torch.zeros(*client.n.shape[:-1], client.problem.model.n, dtype=client.problem.dtype)
        return {"x": begun, "lambda": begun.new_zeros(*begun.shape[:-1], 1)}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        w, strength = self.fit(client)
        return {}, {"x": w, "lambda": strength}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return state

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        return memory["x"]

    def measure(self, client: Client, received: Message, memory: Memory) -> dict[str, Tensor]:
        strength = memory["lambda"].double()
        there = (strength > 0).double()
        order = torch.where(strength > 0, strength, 1.0).log10()
        return {"clients": there, "order": order, "objective": self.objective(client, memory["x"], strength) * there}

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        """λ, the geometric mean over clients, and the mean of what they minimise."""
        clients = float(sums["clients"])
        if clients == 0:
            return {}
        return {"lambda": math.pow(10, float(sums["order"]) / clients), "objective": float(sums["objective"]) / clients}
