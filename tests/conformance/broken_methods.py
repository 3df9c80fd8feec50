"""Methods broken on purpose, each in one place, as they are broken in the wild."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from conformance.own_methods import Controlled
from fedloom.engine.engine import Row
from fedloom.engine.rounds import Rounds
from fedloom.federation.device import Device
from fedloom.federation.replies import Replies
from fedloom.methods import Central, FedAvg, FedSGD, Local
from fedloom.methods.method import Context
from fedloom.types import Memory, Message, State, Vector


@dataclass(frozen=True)
class FlippedSign(FedAvg):
    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] - replies.mean("dx", self.weighting)}


@dataclass(frozen=True)
class ForgottenWeights(FedAvg):
    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + replies.mean("dx", "uniform")}


@dataclass(frozen=True)
class WeightsOfAllClients(FedAvg):
    """Divides by the rows of all clients instead of those who answered."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + replies.sum("dx", replies.sizes / ctx.sizes.sum())}


@dataclass(frozen=True)
class ForgottenStepSize(FedAvg):
    def client(self, device: Device, received: Message, memory: Memory) -> tuple[Message, Memory]:
        y, _ = replace(self, lr=1.0).train(device, received["x"])
        return {"dx": y - received["x"]}, memory


@dataclass(frozen=True)
class OneStepTooFew(FedAvg):
    def client(self, device: Device, received: Message, memory: Memory) -> tuple[Message, Memory]:
        steps = None if self.steps is None else max(1, self.steps - 1)
        y, _ = replace(self, steps=steps).train(device, received["x"])
        return {"dx": y - received["x"]}, memory


@dataclass(frozen=True)
class SlightlyTooLong(FedAvg):
    """A step a millionth too long: no plot would show it."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + (1 + 1e-6) * replies.mean("dx", self.weighting)}


@dataclass(frozen=True)
class IgnoredEffort(FedAvg):
    """Its own loop, which does not know that a slow client may stop early."""

    def client(self, device: Device, received: Message, memory: Memory) -> tuple[Message, Memory]:
        y = received["x"].expand(*device.n.shape[:-1], -1)
        for _ in range(self.steps or self.epochs):
            y = y - self.lr * device.grad(y)
        return {"dx": y - received["x"]}, memory


@dataclass(frozen=True)
class ChangedMessage(FedAvg):
    def client(self, device: Device, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply = super().client(device, received, memory)
        received["x"].mul_(0.5)
        return reply


@dataclass(frozen=True)
class ChangedState(FedAvg):
    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        state["x"] += replies.mean("dx", self.weighting)
        return state


@dataclass(frozen=True)
class MixedStack(FedAvg):
    """Centres its update over the leading axis, which is the clients of a stack."""

    def client(self, device: Device, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply, memory = super().client(device, received, memory)
        dx = reply["dx"]
        return {"dx": dx - 0.1 * dx.mean(0, keepdim=dx.dim() > 1)}, memory


@dataclass(frozen=True)
class FavouredFirst(FedAvg):
    """Gives the first of the replies a greater weight."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        weights = torch.arange(len(replies.clients), 0, -1).double()
        return {"x": state["x"] + replies.sum("dx", weights / weights.sum())}


@dataclass(frozen=True)
class PeekingServer(FedAvg):
    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + replies["dx"].mean(0)}


@dataclass(frozen=True)
class ForeignRandomness(FedAvg):
    def client(self, device: Device, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply, memory = super().client(device, received, memory)
        return {"dx": reply["dx"] + 1e-3 * torch.randn_like(reply["dx"])}, memory


@dataclass(frozen=True)
class SameBatches(FedAvg):
    """Uses no randomness at all though it has mini-batches: always the first rows."""

    def client(self, device: Device, received: Message, memory: Memory) -> tuple[Message, Memory]:
        y, _ = self.train(
            device.problem.device(device.clients if device.stacked else int(device.clients[0])), received["x"]
        )
        return {"dx": y - received["x"]}, memory


@dataclass(frozen=True)
class TrackedGradient(FedAvg):
    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": super().server(state, replies, ctx)["x"].requires_grad_()}


@dataclass(frozen=True)
class NumberInState(FedAvg):
    def server_init(self, ctx: Context) -> Any:
        return {"x": ctx.theta0, "t": 0}


@dataclass(frozen=True)
class ComputingConstructor(FedAvg):
    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", self.lr / 2)


class CountsItsCalls(FedAvg):
    """Keeps the count of its calls on itself."""

    def client(self, device: Device, received: Message, memory: Memory) -> tuple[Message, Memory]:
        self.__dict__["calls"] = self.__dict__.get("calls", 0) + 1
        reply, memory = super().client(device, received, memory)
        return {"dx": reply["dx"] / self.__dict__["calls"]}, memory


@dataclass(frozen=True)
class HiddenMemory(Local):
    """Keeps the clients' models where nothing is rolled back, saved, or seen by another process."""

    kept: ClassVar[dict[int, Tensor]] = {}

    def client(self, device: Device, received: Message, memory: Memory) -> tuple[Message, Memory]:
        if device.round == 0:
            self.kept.clear()
        own = [self.kept.get(int(i), received["x"]) for i in device.clients]
        y, _ = self.train(device, torch.stack(own) if device.stacked else own[0])
        self.kept.update(zip(device.clients.tolist(), y.reshape(len(own), -1), strict=True))
        return {}, {"x": y}


@dataclass(frozen=True)
class ForgetfulLocal(Local):
    def client(self, device: Device, received: Message, memory: Memory) -> tuple[Message, Memory]:
        y, _ = self.train(device, received["x"].expand_as(memory["x"]))
        return {}, {"x": y}


@dataclass(frozen=True)
class SharedPersonalModel(Local):
    """Hands every client the first client's model."""

    def personal(self, device: Device, state: State, memory: Memory) -> Vector:
        return memory["x"][:1].expand_as(memory["x"])


@dataclass(frozen=True)
class ForgottenServerStep(FedSGD):
    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] - replies.mean("g", self.weighting)}


@dataclass(frozen=True)
class SummedGradients(FedSGD):
    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] - self.lr * replies.sum("g")}


@dataclass(frozen=True)
class ShrunkModel(Central):
    """Has a weight decay that nobody asked for."""

    def client(self, device: Device, received: Message, memory: Memory) -> tuple[Message, Memory]:
        y, _ = self.train(device, received["x"], pull=(1e-3, torch.zeros_like(received["x"])))
        return {"dx": y - received["x"]}, memory


@dataclass(frozen=True)
class FlippedCorrection(Controlled):
    def client(self, device: Device, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x, c, c_i = received["x"], received["c"], memory["c"]
        y, steps = self.train(device, x, shift=c_i - c)
        return {"dx": y - x, "dc": (x - y) / (steps * self.lr) - c}, memory


@dataclass(frozen=True)
class ForgottenCorrection(Controlled):
    def client(self, device: Device, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x, c_i = received["x"], memory["c"]
        y, steps = self.train(device, x)
        return {"dx": y - x, "dc": (x - y) / (steps * self.lr) - c_i}, memory


@dataclass(frozen=True)
class UndecodedMemory(Controlled):
    """Moves its memory by what it meant to send, not by what arrived."""

    def client(self, device: Device, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply, _ = super().client(device, received, memory)
        return reply, {"c": memory["c"] + reply["dc"]}

    def settle(self, device: Device, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return memory


@dataclass(frozen=True)
class KeptWhenLost(Controlled):
    """Remembers its new control variate although the reply may never arrive."""

    kept: ClassVar[dict[int, Tensor]] = {}

    def client(self, device: Device, received: Message, memory: Memory) -> tuple[Message, Memory]:
        if device.round == 0:
            self.kept.clear()
        rows = memory["c"].reshape(len(device.clients), -1)
        own = torch.stack([self.kept.get(int(i), row) for i, row in zip(device.clients, rows, strict=True)])
        reply, _ = super().client(device, received, {"c": own.view_as(memory["c"])})
        self.kept.update(zip(device.clients.tolist(), own + reply["dc"].reshape(own.shape), strict=True))
        return reply, memory


@dataclass(frozen=True)
class WrongCounts(Controlled):
    """Divides the sum of the corrections by those who answered instead of by all clients."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {**super().server(state, replies, ctx), "c": state["c"] + replies.mean("dc", "uniform")}


class MiscountingRounds(Rounds):
    """An engine that counts one byte too few."""

    def step(self) -> Row:
        row = super().step()
        self.clocks.bytes_up -= 1
        return row
