"""What a step of the channel may do: remember, act on the sum, act on the way down, report figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedloom.channel import Channel, Quantise, payload
from fedloom.engine.fleet import Distribution, Fleet
from fedloom.engine.schedule import Schedule
from fedloom.errors import ConfigError
from fedloom.federation.client import Client
from fedloom.federation.randomness import Draw
from fedloom.federation.replies import Replies
from fedloom.methods import FedAvg
from fedloom.methods.method import Context, ServerMethod
from fedloom.types import Memory, Message, State
from odd_transforms import Clip, Coarse, HalfDown, Masked
from problems import make_problem, run, start

F64 = torch.float64


@dataclass(frozen=True)
class Constant(ServerMethod):
    """Every client sends the same number whenever it is asked; the server adds up what it gets."""

    number: float = 0.3

    def server_init(self, ctx: Context) -> State:
        return {"x": ctx.theta0, "total": torch.zeros(2, dtype=F64)}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        return {"v": torch.full((*client.n.shape[:-1], 2), self.number, dtype=F64)}, memory

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {**state, "total": state["total"] + replies.sum("v")}


@pytest.mark.parametrize("stack", [1, 2, 5])
def test_what_a_step_remembers_holds_only_with_a_reply_that_was_accepted(stack: int) -> None:
    engine = start(make_problem("linear"), Constant(), transforms=(Coarse(),), fleet=Fleet(loss=0.4), stack=stack)
    accepted: Counter[str] = Counter()
    for _ in range(12):
        row = engine.step()
        accepted["turns"] += row["accepted"]
    kept, known = engine.store.gather(torch.arange(5))
    assert 0 < accepted["turns"] < 60
    assert bool(known.all())
    left = kept["channel.0.v"].sum(0)  # what was sent and what is still to be sent is what was to be sent
    torch.testing.assert_close(engine.state["total"] + left, torch.full((2,), 0.3 * accepted["turns"], dtype=F64))
    assert float(kept["channel.0.v"].abs().max()) > 0.01


def test_a_step_that_sees_the_whole_message_remembers_something_for_the_weight_too() -> None:
    @dataclass(frozen=True)
    class Whole(Coarse):
        stage = "message"

    engine = run(make_problem("linear"), FedAvg(batch=4), 2, transforms=(Whole(),))
    kept, _ = engine.store.gather(torch.arange(5))
    assert set(kept) == {"channel.0.dx", "channel.0.weight"}
    assert not kept["channel.0.weight"].any()  # whole numbers need no rounding


def test_masks_cancel_in_the_sum_weights_included() -> None:
    problem = make_problem("linear", dtype=F64)
    plain, masked = (run(problem, FedAvg(batch=4), 3, transforms=t, fleet=Fleet(loss=0.2)) for t in ((), (Masked(),)))
    torch.testing.assert_close(masked.state["x"], plain.state["x"], rtol=0, atol=1e-12)
    message = {"dx": torch.ones(2, 3, dtype=F64)}
    weight = torch.tensor([[2.0], [3.0]], dtype=F64)
    wire = Channel((Masked(),)).send(message, weight, {}, np.arange(2), Draw(0)).wire
    assert set(wire) == {"dx", "weight"}
    assert float((wire["weight"] - weight).abs().min()) > 0.1


def test_what_the_server_sends_is_transformed_counted_and_read_by_the_clients() -> None:
    problem = make_problem("linear")
    engine = start(problem, FedAvg(batch=None, lr=0.5), transforms=(HalfDown(),))
    theta = engine.state["x"]
    row = engine.step()
    assert row["bytes_down"] == 5 * payload({"x": theta.half()})
    seen = theta.half().float()
    moves = torch.stack([-0.5 * problem.client(i).grad(seen) for i in range(5)])
    sizes = problem.data.splits["train"].sizes.float()
    torch.testing.assert_close(engine.state["x"], theta + (sizes / sizes.sum()) @ moves)
    assert not torch.equal(seen, theta)


@pytest.mark.parametrize("schedule", [Schedule("rounds"), Schedule("async", 3, 2)])
def test_figures_of_replies_and_of_the_whole_are_in_the_history(schedule: Schedule) -> None:
    fleet = Fleet(delay_up=Distribution("uniform", 1.0, 9.0))
    how: dict[str, Any] = {"transforms": (Clip(0.3),), "fleet": fleet, "schedule": schedule}
    engine = start(make_problem("linear"), Constant(0.25), **how)
    row = engine.step()
    assert row["channel"] == {"clipped": 1.0, "budget": 0.5 * engine.clocks.server_steps}
    assert start(make_problem("linear"), Constant(0.1), **how).step()["channel"]["clipped"] == 0.0
    assert "channel" not in start(make_problem("linear"), Constant(), fleet=fleet, schedule=schedule).step()


def test_a_reply_is_clipped_before_its_weight() -> None:
    message, weight = {"dx": torch.tensor([[3.0, 4.0], [0.0, 0.1]])}, torch.tensor([[10.0], [2.0]])
    channel = Channel((Clip(1.0),))
    arrived = channel.receive(channel.send(message, weight, {}, np.arange(2), Draw(0)).wire)
    torch.testing.assert_close(arrived.reply["dx"], torch.tensor([[6.0, 8.0], [0.0, 0.2]]))
    assert arrived.reply["weight"].tolist() == [[10.0], [2.0]]
    single = channel.receive(channel.send(message, weight, {}, np.arange(2), Draw(0), "each").wire)
    torch.testing.assert_close(single.reply["dx"], torch.tensor([[0.6, 0.8], [0.0, 0.1]]))


def test_steps_in_an_order_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"an order that cannot be: first what sees the reply as the client made it"):
        Channel((Quantise(8), Clip())).check("fedavg", exact=False)
    Channel((Clip(), Quantise(8), Masked())).check("fedavg", exact=False)
