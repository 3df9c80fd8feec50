"""The linear baseline of full cooperation: one model, fitted exactly to all training rows in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedloom.federation.client import Client
from fedloom.federation.replies import Replies
from fedloom.methods.fitting import LinearFit
from fedloom.methods.method import Context
from fedloom.methods.register import register
from fedloom.types import Memory, Message, State


@register("global-linear", family="baseline", declaration=".linear:GLOBAL")
@dataclass(frozen=True)
class GlobalLinear(LinearFit):
    """One linear model of all rows, pooled and fitted exactly.

    A support vector machine, ridge regression or logistic regression, by the loss, on the pooled rows of all source
    clients: what one linear model could do if the data were allowed to meet.
    """

    layout: ClassVar[Literal["rows", "pooled"]] = "pooled"

    def server_init(self, ctx: Context) -> State:
        return {"x": torch.zeros_like(ctx.theta0), "lambda": ctx.theta0.new_zeros(1)}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return state

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        w, strength = self.fit(client)
        return {"x": w, "lambda": strength}, memory

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {key: replies.mean(key) for key in ("x", "lambda")}

    def measure(self, client: Client, received: Message, memory: Memory) -> dict[str, Tensor]:
        return {"objective": self.objective(client, received["x"], received["lambda"].double())}

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        """λ, and what is minimised."""
        strength = float(state["lambda"])
        return {"lambda": strength, "objective": float(sums["objective"])} if strength > 0 else {}
