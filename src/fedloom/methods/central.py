"""The baseline of full cooperation: all training data in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedloom.federation.client import Client
from fedloom.federation.replies import Replies
from fedloom.methods.method import Context
from fedloom.methods.register import register
from fedloom.methods.training import LocalTraining
from fedloom.types import Memory, Message, State


@register(
    "central",
    family="baseline",
    summary="all training data pooled in one place",
    declaration="fedloom.conformance.declarations.baselines:CENTRAL",
)
@dataclass(frozen=True)
class Central(LocalTraining):
    """Plain training on the pooled rows of all source clients: what one could do if the data were allowed to meet."""

    coordinatewise = True
    layout: ClassVar[Literal["rows", "pooled"]] = "pooled"

    def server_init(self, ctx: Context) -> State:
        return {"x": ctx.theta0}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        y, _ = self.train(client, received["x"])
        return {"dx": y - received["x"]}, memory

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + replies.mean("dx")}
