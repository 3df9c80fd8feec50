"""A wrapper that changes nothing: it counts the server's steps and every client's turns."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fedloom.federation.client import Client
from fedloom.federation.replies import Replies
from fedloom.methods import FedAvg
from fedloom.methods.method import Context, ServerMethod
from fedloom.methods.wrapper import Wrapper
from fedloom.types import Memory, Message, State

STEPS, TURNS = "counted steps", "counted turns"


@dataclass(frozen=True)
class Counting(Wrapper):
    """Counts the server's steps in its state and the accepted turns of each client in the client's memory."""

    inner: ServerMethod = field(default_factory=FedAvg)
    by: int = 1
    """What each call counts for."""

    @property
    def remembers(self) -> bool:
        return True

    def server_init(self, ctx: Context) -> State:
        return {**self.inner.server_init(ctx), STEPS: torch.tensor(0)}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        own = {key: value for key, value in state.items() if key != STEPS}
        return {**self.inner.server(own, replies, ctx), STEPS: state[STEPS] + self.by}

    def client_init(self, client: Client, received: Message) -> Memory:
        return {**self.inner.client_init(client, received), TURNS: torch.zeros_like(client.n)}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply, kept = self.inner.client(client, received, _inside(memory))
        return reply, {**kept, TURNS: memory[TURNS]}

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return {**self.inner.settle(client, _inside(memory), sent, inbox), TURNS: memory[TURNS] + self.by}


def _inside(memory: Memory) -> Memory:
    """What the inner method remembers."""
    return {key: value for key, value in memory.items() if key != TURNS}
