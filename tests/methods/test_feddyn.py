"""FedDyn in the kit, and the slips that the kit must see; a round by hand; replies made from old models."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from fedloom.conformance import check_method, quadratics
from fedloom.conformance.staggered import Staggered
from fedloom.errors import ConfigError
from fedloom.federation.client import Client
from fedloom.federation.replies import Replies
from fedloom.methods.feddyn import FedDyn, known_answers
from fedloom.methods.method import Context
from fedloom.types import Memory, Message, State
from problems import make_problem, replies_of, start

F64 = torch.float64


@dataclass(frozen=True)
class AlphaIgnored(FedDyn):
    """Clients are held by 1, whatever α is."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        return FedDyn.client(replace(self, alpha=1.0), client, received, memory)


@dataclass(frozen=True)
class MeantNotDecoded(FedDyn):
    """g_k moves by what the client meant to send."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply, _ = FedDyn.client(self, client, received, memory)
        return reply, {"g": memory["g"] - self.alpha * reply["dx"]}

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return memory


@dataclass(frozen=True)
class SignTurned(FedDyn):
    """g_k + α(θ_k − x)."""

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return {"g": memory["g"] + self.alpha * sent["dx"]}


@dataclass(frozen=True)
class MeanOfThoseWhoAnswered(FedDyn):
    """h moves by 1/|P_t| instead of 1/m."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return FedDyn.server(self, state, replies, replace(ctx, clients=len(replies.clients)))


@pytest.mark.parametrize(
    ("cls", "check"),
    [
        (AlphaIgnored, "known-answer: exact solves are Algorithm 1"),
        (MeantNotDecoded, "quantised: K local steps find it too"),
        (SignTurned, "known-answer: exact solves find the optimum"),
        (MeanOfThoseWhoAnswered, "lost: exact solves find the optimum"),
        (MeanOfThoseWhoAnswered, "sampled: exact solves are Algorithm 1"),
    ],
)
def test_the_kit_sees_a_slip(cls: type[FedDyn], check: str) -> None:
    (outcome,) = check_method("slip", cls(), known_answers(), checks=[check])
    assert not outcome.passed


def test_a_round_of_the_server_by_hand() -> None:
    method = FedDyn(alpha=0.5)
    ctx = start(make_problem("linear", dtype=F64), method).context(0)  # of 5 clients
    state = {"x": torch.tensor([1.0, 2.0], dtype=F64), "h": torch.tensor([0.2, 0.0], dtype=F64), "rows": ctx.theta0[0]}
    moves = torch.tensor([[4.0, 0.0], [0.0, -8.0]], dtype=F64)
    after = method.server(state, replies_of(method, [1, 4], {"dx": moves}, [3, 1]), ctx)
    assert after["h"].tolist() == pytest.approx([0.2 - 0.4, 0.8], abs=1e-15)  # h − 0.5/5 Σ dx
    assert after["x"].tolist() == pytest.approx([1 + 2 + 0.4, 2 - 4 - 1.6], abs=1e-15)


@pytest.mark.parametrize("buffer", [1, 2, 5])
def test_old_replies_lead_to_the_same_optimum_if_clients_are_held_strongly(buffer: int) -> None:
    known = quadratics()
    engine = Staggered(
        known.problem, FedDyn(lr=0.05, batch=None, steps=4, alpha=10.0), [1.0, 1.3, 1.7, 2.1, 2.6], buffer
    )
    assert torch.allclose(engine.run(800), known.minimiser("uniform"), atol=1e-12, rtol=0)
    assert max(engine.staleness) > 0


def test_a_solver_that_the_model_has_no_use_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="solver = 'exact' needs a closed form"):
        start(make_problem("mlp"), FedDyn(solver="exact"))
