"""Methods broken on purpose, each in one place, as they are broken in the wild."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from conformance.own_methods import Controlled
from fedloom.engine.engine import Row
from fedloom.engine.rounds import Rounds
from fedloom.federation.client import Client
from fedloom.federation.replies import Replies
from fedloom.federation.schedules import rate_at
from fedloom.federation.staleness import polynomial
from fedloom.methods import (
    ADMM,
    ADMMFedMeta,
    ASOFed,
    Central,
    FedAdam,
    FedAsync,
    FedAvg,
    FedAvgM,
    FedBuff,
    FedProx,
    FedSGD,
    Local,
    Method,
    PerFedAvg,
    Scaffold,
)
from fedloom.methods.aso_fed import weighted
from fedloom.methods.method import Context, Ints, Wish
from fedloom.types import Memory, Message, State, Vector


@dataclass(frozen=True)
class FlippedSign(FedAvg):
    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] - replies.mean("dx")}


@dataclass(frozen=True)
class ForgottenWeights(FedAvg):
    def weight(self, client: Client) -> Tensor | None:
        return None


@dataclass(frozen=True)
class WeightsOfAllClients(FedAvg):
    """Divides by the rows of all clients instead of those who answered."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + replies.sum("dx") / ctx.sizes.sum()}


@dataclass(frozen=True)
class ForgottenStepSize(FedAvg):
    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        y, _ = replace(self, lr=1.0).train(client, received["x"])
        return {"dx": y - received["x"]}, memory


@dataclass(frozen=True)
class OneStepTooFew(FedAvg):
    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        steps = None if self.steps is None else max(1, self.steps - 1)
        y, _ = replace(self, steps=steps).train(client, received["x"])
        return {"dx": y - received["x"]}, memory


@dataclass(frozen=True)
class SlightlyTooLong(FedAvg):
    """A step a millionth too long: no plot would show it."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + (1 + 1e-6) * replies.mean("dx")}


@dataclass(frozen=True)
class IgnoredEffort(FedAvg):
    """Its own loop, which does not know that a slow client may stop early."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        y = received["x"].expand(*client.n.shape[:-1], -1)
        for _ in range(self.steps or self.epochs):
            y = y - self.lr * client.grad(y)
        return {"dx": y - received["x"]}, memory


@dataclass(frozen=True)
class ChangedMessage(FedAvg):
    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply = super().client(client, received, memory)
        received["x"].mul_(0.5)
        return reply


@dataclass(frozen=True)
class ChangedState(FedAvg):
    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        state["x"] += replies.mean("dx")
        return state


@dataclass(frozen=True)
class MixedStack(FedAvg):
    """Centres its update over the leading axis, which is the clients of a stack."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply, memory = super().client(client, received, memory)
        dx = reply["dx"]
        return {"dx": dx - 0.1 * dx.mean(0, keepdim=dx.dim() > 1)}, memory


@dataclass(frozen=True)
class FavouredFirst(FedAvg):
    """Gives the first of the replies a greater weight."""

    reduce = "each"

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        weights = torch.arange(len(replies.clients), 0, -1).double()
        return {"x": state["x"] + replies.sum("dx", weights / weights.sum())}


@dataclass(frozen=True)
class PeekingServer(FedAvg):
    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + replies.each("dx").mean(0)}


@dataclass(frozen=True)
class ForeignRandomness(FedAvg):
    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply, memory = super().client(client, received, memory)
        return {"dx": reply["dx"] + 1e-3 * torch.randn_like(reply["dx"])}, memory


@dataclass(frozen=True)
class SameBatches(FedAvg):
    """Uses no randomness at all though it has mini-batches: always the first rows."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        y, _ = self.train(
            client.problem.client(client.clients if client.stacked else int(client.clients[0])), received["x"]
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

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        self.__dict__["calls"] = self.__dict__.get("calls", 0) + 1
        reply, memory = super().client(client, received, memory)
        return {"dx": reply["dx"] / self.__dict__["calls"]}, memory


@dataclass(frozen=True)
class HiddenMemory(Local):
    """Keeps the clients' models where nothing is rolled back, saved, or seen by another process."""

    kept: ClassVar[dict[int, Tensor]] = {}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        if client.round == 0:
            self.kept.clear()
        own = [self.kept.get(int(i), received["x"]) for i in client.clients]
        y, _ = self.train(client, torch.stack(own) if client.stacked else own[0])
        self.kept.update(zip(client.clients.tolist(), y.reshape(len(own), -1), strict=True))
        return {}, {"x": y}


@dataclass(frozen=True)
class ForgetfulLocal(Local):
    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        y, _ = self.train(client, received["x"].expand_as(memory["x"]))
        return {}, {"x": y}


@dataclass(frozen=True)
class SharedPersonalModel(Local):
    """Hands every client the first client's model."""

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        return memory["x"][:1].expand_as(memory["x"])


@dataclass(frozen=True)
class ForgottenServerStep(FedSGD):
    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] - replies.mean("g")}


@dataclass(frozen=True)
class SummedGradients(FedSGD):
    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] - self.lr * replies.sum("g")}


@dataclass(frozen=True)
class ShrunkModel(Central):
    """Has a weight decay that nobody asked for."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        y, _ = self.train(client, received["x"], pull=(1e-3, torch.zeros_like(received["x"])))
        return {"dx": y - received["x"]}, memory


@dataclass(frozen=True)
class FlippedCorrection(Controlled):
    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x, c, c_i = received["x"], received["c"], memory["c"]
        y, steps = self.train(client, x, shift=c_i - c)
        return {"dx": y - x, "dc": (x - y) / (steps * self.lr) - c}, memory


@dataclass(frozen=True)
class ForgottenCorrection(Controlled):
    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x, c_i = received["x"], memory["c"]
        y, steps = self.train(client, x)
        return {"dx": y - x, "dc": (x - y) / (steps * self.lr) - c_i}, memory


@dataclass(frozen=True)
class UndecodedMemory(Controlled):
    """Moves its memory by what it meant to send, not by what arrived."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply, _ = super().client(client, received, memory)
        return reply, {"c": memory["c"] + reply["dc"]}

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return memory


@dataclass(frozen=True)
class KeptWhenLost(Controlled):
    """Remembers its new control variate although the reply may never arrive."""

    kept: ClassVar[dict[int, Tensor]] = {}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        if client.round == 0:
            self.kept.clear()
        rows = memory["c"].reshape(len(client.clients), -1)
        own = torch.stack([self.kept.get(int(i), row) for i, row in zip(client.clients, rows, strict=True)])
        reply, _ = super().client(client, received, {"c": own.view_as(memory["c"])})
        self.kept.update(zip(client.clients.tolist(), own + reply["dc"].reshape(own.shape), strict=True))
        return reply, memory


@dataclass(frozen=True)
class WrongCounts(Controlled):
    """Divides the sum of the corrections by those who answered instead of by all clients."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {**super().server(state, replies, ctx), "c": state["c"] + replies.mean("dc")}


class MiscountingRounds(Rounds):
    """An engine that counts one byte too few."""

    def step(self) -> Row:
        row = super().step()
        self.clocks.bytes_up -= 1
        return row


@dataclass(frozen=True)
class WrongEstimate(FedAvg):
    """Says that its clients do one pass, whatever they do."""

    def work(self, rows: Ints) -> Ints | None:
        return rows


@dataclass(frozen=True)
class NumberReader(FedAvg):
    """Takes what it was sent for one number, which it is not where each client fetched for itself."""

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"], "half": torch.tensor(0.5)}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply, memory = super().client(client, received, memory)
        return {"dx": float(received["half"]) * reply["dx"]}, memory


@dataclass(frozen=True)
class FadingShare(FedAsync):
    """Multiplies the α that it keeps by what an old reply is worth: it fades for good."""

    def server_init(self, ctx: Context) -> State:
        return {**super().server_init(ctx), "alpha": torch.tensor(self.alpha)}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        x, alpha = state["x"], state["alpha"]
        for new, worth in zip(
            replies.each("x"), self.worth(replies.staleness).expand(len(replies.each("x"))), strict=True
        ):
            alpha = alpha * worth
            x = (1 - alpha) * x + alpha * new
        return {"x": x, "alpha": alpha}


@dataclass(frozen=True)
class HingeTheOtherWay(FedAsync):
    """1/(a(Δ + b) + 1) from Δ = b on."""

    def worth(self, staleness: Tensor) -> Tensor:
        if self.staleness != "hinge":
            return super().worth(staleness)
        return torch.where(staleness <= self.b, 1.0, 1 / (10 * (staleness.double() + self.b) + 1))


@dataclass(frozen=True)
class AveragedBuffer(FedAsync):
    """Mixes in the mean of several replies instead of one after the other."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        share = self.alpha * self.worth(replies.staleness).expand(len(replies.clients)) / len(replies.clients)
        return {"x": (1 - float(share.sum())) * state["x"] + replies.sum("x", share)}


@dataclass(frozen=True)
class DividedByTheWorth(FedBuff):
    """Divides by the sum of what the moves are worth instead of by their number."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        worth = (replies.staleness.double() + 1).expand(len(replies.clients)) ** -0.5
        return {"x": state["x"] + float(self.server_lr) * replies.sum("dx", worth / worth.sum())}


@dataclass(frozen=True)
class RowsOfLongAgo(ASOFed):
    """Adds up the rows that the server knew of at first, not those that the replies tell of."""

    def server_init(self, ctx: Context) -> State:
        return {**super().server_init(ctx), "rows": ctx.sizes[ctx.sources].sum()}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        x = state["x"] - replies.sum("dw") / state["rows"]
        return {**state, "x": x, "handed_out": x}


@dataclass(frozen=True)
class MovedBeforeHeard(ASOFed):
    """Remembers where it went, not by how much the server says that it moved."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply, after = super().client(client, received, memory)
        return reply, {**after, "w": after["w"] - reply["dw"]}

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return memory


@dataclass(frozen=True)
class ForgetsToPull(ASOFed):
    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        return ASOFed(**{**vars(self), "lambda_": 0.0}).client(client, received, memory)


@dataclass(frozen=True)
class TheOtherOrder(ASOFed):
    """Renews h before it uses it, whatever it was told."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        return ASOFed(**{**vars(self), "order": "equations"}).client(client, received, memory)


@dataclass(frozen=True)
class CollapsingFeatures(ASOFed):
    """Puts the weighted first layer back as it is printed."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        after = ASOFed(**{**vars(self), "features": "literal"}).server(state, replies, ctx)
        return {**after, "x": super().server(state, replies, ctx)["x"]}


@dataclass(frozen=True)
class AlwaysBySize(FedProx):
    """Weighs by size, whatever it was told."""

    def weight(self, client: Client) -> Tensor | None:
        return client.n


@dataclass(frozen=True)
class FrozenMomentum(FedAvgM):
    """Takes its server's step size from round 0 for ever."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return super().server(state, replies, replace(ctx, round=0))


@dataclass(frozen=True)
class FrozenAdam(FedAdam):
    """Takes its server's step size from round 0 for ever."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return super().server(state, replies, replace(ctx, round=0))


@dataclass(frozen=True)
class UsualFall(FedAsync):
    """Lets old replies fall at the usual pace, whatever a and b say."""

    def worth(self, staleness: Tensor) -> Tensor:
        return FedAsync(staleness=self.staleness).worth(staleness)


@dataclass(frozen=True)
class AgelessBySize(FedBuff):
    """Forgets how old replies are where it weighs them by size."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        kind = "none" if self.weighting == "size" else self.staleness
        worth = None if kind == "none" else polynomial(replies.staleness, 0.5)
        return {"x": state["x"] + rate_at(self.server_lr, ctx.round) * replies.mean("dx", worth)}


@dataclass(frozen=True)
class CommonPenalty(ADMM):
    """Has one penalty for all, whatever it was told."""

    def _rho(self, rho: Tensor, size: Tensor) -> Tensor:
        return rho


@dataclass(frozen=True)
class AlwaysWarm(ADMM):
    """Begins where the client was, whatever it was told."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        return ADMM(**{**vars(self), "warm_start": True}).client(client, received, memory)


@dataclass(frozen=True)
class StopsAtOnce(ADMM):
    def done(self, state: State, figures: Mapping[str, float]) -> bool:
        return self.stop > 0


@dataclass(frozen=True)
class UsualAdaptation(PerFedAvg):
    """Adapts by 0.01, whatever α is."""

    def adapt(self, client: Client, state: State, memory: Memory, theta: Vector, wish: Wish) -> Vector:
        return Method.adapt(self, client, state, memory, theta, wish)


@dataclass(frozen=True)
class OneBatchForAll(PerFedAvg):
    """Adapts, judges and bends on the same rows where it should draw three times."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x, (rows,) = received["x"], client.batches("train", self.batch, 1)
        g, times = client.linearise(x, rows)
        r = client.grad(x - self.alpha * g, rows)
        return {"dx": -float(self.lr) * (r - self.alpha * times(r))}, memory


@dataclass(frozen=True)
class BareServerStep(Scaffold):
    """Steps by 1 at the server, whatever it was told."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return Scaffold(**{**vars(self), "server_lr": 1.0}).server(state, replies, ctx)


@dataclass(frozen=True)
class GradientAfterwards(Scaffold):
    """Renews c by the gradient at y instead of at the server's model."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply, after = super().client(client, received, memory)
        if self.option == "I":
            reply = {**reply, "dc": client.grad(received["x"] + reply["dx"]) - memory["c"]}
        return reply, after


@dataclass(frozen=True)
class WeighedBySize(Scaffold):
    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply, memory = super().client(client, received, memory)
        mean = client.problem.data.splits["train"].sizes.double().mean()
        return {**reply, "dx": reply["dx"] * (client.n / mean)}, memory


@dataclass(frozen=True)
class WholeDelays(ASOFed):
    """Multiplies by the delay itself, not by its logarithm."""

    def _multiplier(self, memory: Memory) -> float | Tensor:
        return (memory["delays"] / memory["visits"]).clamp(min=1) if self.dynamic else 1.0


@dataclass(frozen=True)
class OtherAxis(ASOFed):
    """Takes the soft-max over the inputs of each output."""

    def _features(self, x: Vector, layer: Tensor) -> Vector:
        start, stop, outputs = layer.tolist()
        if self.features == "none":
            return x
        w = weighted(x[start:stop].view(outputs, -1).T, self.features != "literal").T
        return torch.cat([x[:start], w.reshape(-1), x[stop:]])


@dataclass(frozen=True)
class FixedDistance(ADMMFedMeta):
    """Takes its differences at 0.01 where it was told nothing."""

    def local(self, client: Client, theta: Vector, y: Vector, w: Tensor, rho: Tensor) -> Vector:
        return ADMMFedMeta(**{**vars(self), "delta": self.delta or 0.01}).local(client, theta, y, w, rho)


@dataclass(frozen=True)
class WideStart(ADMMFedMeta):
    """Draws the first prices ten times as large."""

    def _drawn(self, client: Client, like: Vector) -> Vector:
        return 10 * super()._drawn(client, like)
