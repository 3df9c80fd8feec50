"""The baseline of no cooperation: every client alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedloom.federation.client import Client
from fedloom.federation.replies import Replies
from fedloom.methods.method import Context
from fedloom.methods.register import register
from fedloom.methods.training import LocalTraining
from fedloom.types import Memory, Message, State, Vector


@register("local", family="baseline", declaration=".baselines:LOCAL")
@dataclass(frozen=True)
class Local(LocalTraining):
    """Every client alone, no cooperation.

    Each client trains its own model on its own data and never sends anything but the word that it is done.

    The server sends the first model always; a client that has one of its own ignores it.
    """

    coordinatewise = True
    evaluates: ClassVar[Literal["global", "personal"]] = "personal"
    stand_in = "the initial model"

    def client_init(self, client: Client, received: Message) -> Memory:
        return {"x": received["x"].expand(*client.n.shape[:-1], -1)}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        y, _ = self.train(client, memory["x"])
        return {}, {"x": y}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return state

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        return memory["x"]
