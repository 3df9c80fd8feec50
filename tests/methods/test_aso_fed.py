"""ASO-Fed by hand: both orders of its decay, its dynamic step, its bookkeeping and its feature learning."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor, nn

from fedloom.conformance.problems import quadratics
from fedloom.conformance.staggered import Staggered
from fedloom.errors import ConfigError
from fedloom.federation.data import FederatedData
from fedloom.federation.model import Model
from fedloom.federation.networks import build_model
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ragged
from fedloom.methods import ASOFed, ASOFedD, ASOFedF
from fedloom.methods.aso_fed import first_layer, weighted
from fedloom.methods.method import Context
from fedloom.types import Memory, State
from problems import make_data, make_problem, replies_of, run, start

F64 = torch.float64


def line(label: float) -> Problem:
    """One client whose loss is ½(w − label)²."""
    owned = Ragged.contiguous(torch.tensor([1]))
    x, y = torch.ones(1, 1, dtype=F64), torch.full((1, 1), label, dtype=F64)
    data = FederatedData("a line", x, y, "regression", {"train": owned, "test": owned})
    return Problem(data, build_model("linear", data, bias=False), "squared", F64)


def visits(method: Any, label: float, first: float, count: int) -> list[float]:
    """By how much the client's w moves in each of so many visits, nobody else being there."""
    engine = start(line(label), method, theta0=torch.tensor([first], dtype=F64))
    moves = []
    for _ in range(count):
        before = engine.state["x"]
        engine.step()
        moves.append(float(before - engine.state["x"]))
    return moves


@pytest.mark.parametrize(
    ("order", "beta", "zetas"),
    [
        ("algorithm", 0.001, [1, 0, 0.999, 0.999999, 1]),
        ("algorithm", 0.9, [1, 0, 0.1, 0.19, 0.271]),
        ("algorithm", 0.0, [1, 0, 1, 1, 1]),
        ("equations", 0.001, [1, 0.999, 0.999999, 1]),
        ("equations", 0.9, [1, 0.1, 0.19, 0.271]),
        ("equations", 0.0, [1, 1, 1, 1]),
    ],
)
def test_a_constant_gradient_of_one_gives_the_known_directions(order: Any, beta: float, zetas: list[float]) -> None:
    """The step is so small that w does not get anywhere: its gradient stays 1."""
    lr = 1e-12
    method = ASOFed(lr=lr, steps=1, beta=beta, order=order)
    found = [move / lr for move in visits(method, label=-1.0, first=0.0, count=len(zetas))]
    assert found == pytest.approx(zetas, abs=1e-8)


@pytest.mark.parametrize(
    ("order", "lr", "settles"),
    [
        ("algorithm", 0.6, True),
        ("algorithm", 0.72, False),
        ("equations", 0.72, True),
        ("equations", 1.95, True),
        ("equations", 2.05, False),
    ],
)
def test_how_long_a_step_may_be_depends_on_the_order(order: Any, lr: float, settles: bool) -> None:
    """On ½w² the roots leave the unit circle at η = 2/3 (for β → 0), or at 2: z³ = z² − η(z² − z + 1) has z = −1."""
    moves = visits(ASOFed(lr=lr, steps=1, order=order), label=0.0, first=1.0, count=120)
    late = max(abs(move) for move in moves[-3:])
    assert late < 1e-2 if settles else late > 1e2


def test_without_pull_and_memory_it_is_asynchronous_gradient_descent() -> None:
    """h and v frozen at 0: every visit moves the server by η n_k/N of a gradient at the model of long ago."""
    known, lr = quadratics(unequal=True), 0.3
    method = ASOFedF(lr=lr, steps=1, lambda_=0.0, keep=False, dynamic=False)
    ctx = start(known.problem, method, evaluations=()).context(0)
    state, w = method.server_init(ctx), ctx.theta0
    fetched, ours = [state] * 5, [w] * 5
    for t in range(40):
        k = (3 * t + t // 7) % 5  # some turn, in which delays differ
        client, received = known.problem.client(np.array([k])), method.broadcast(fetched[k], torch.tensor([k]))
        reply, _ = method.client(client, received, method.client_init(client, received))
        replies = replies_of(method, [k], reply, [int(ctx.sizes[k])], [1])
        state = method.server(state, replies, ctx)
        w = w - lr * known.weights()[k] * (known.hessians[k] @ (ours[k] - known.optima[k]))
        fetched[k], ours[k] = state, w
        assert torch.allclose(state["x"], w, atol=1e-13, rtol=0)
    assert float((w - ctx.theta0).abs().max()) > 0.1


@pytest.mark.parametrize("method", [ASOFed(steps=3), ASOFedD(batch=2), ASOFedF(order="equations")])
def test_the_server_has_a_single_clients_model_bit_by_bit(method: Any) -> None:
    engine = Staggered(make_problem("mlp", sizes=[11]), method, ticks=[40.0])
    for _ in range(8):
        engine.run(1)
        assert torch.equal(engine.state["x"], engine.memories[0]["w"][0])


def test_the_model_can_be_recovered_from_what_was_uploaded() -> None:
    known = quadratics(unequal=True)
    engine = Staggered(known.problem, ASOFed(lr=0.1, steps=2), ticks=[1.0, 1.7, 2.3, 5.1, 9.7])
    first = engine.base.theta0
    for _ in range(30):
        engine.run(1)
        moves = {k: memory["w"][0] - first for k, memory in engine.memories.items()}
        total = sum((known.weights()[k] * move for k, move in moves.items()), torch.zeros_like(first))
        assert torch.allclose(engine.state["x"], first + total, atol=1e-14, rtol=0)


def test_single_old_replies_lead_kept_models_to_the_optimum_of_the_moreau_envelopes() -> None:
    from fedloom.conformance.declarations.asynchronous import envelopes

    known, method = quadratics(unequal=True), ASOFed(lr=0.1, epochs=3, lambda_=0.5)
    found = Staggered(known.problem, method, ticks=[1.0, 1.3, 1.7, 2.1, 2.6]).run(900)
    assert torch.allclose(found, envelopes(known, method), atol=1e-9, rtol=0)
    assert float((found - known.optimum).abs().max()) > 0.01


def stepped(method: Any, state: State, ctx: Context, moves: Tensor, who: list[int], sizes: list[int]) -> State:
    """The server's step on these clients' moves, told that they have so many rows now."""
    told = replace(ctx, sizes=ctx.sizes.index_copy(0, torch.tensor(who), torch.tensor(sizes)))
    return method.server(state, replies_of(method, who, {"dw": moves}, sizes), told)  # type: ignore[no-any-return]


def test_it_does_not_matter_whose_reply_comes_first_when_all_began_at_the_same_model() -> None:
    problem, method = make_problem("mlp", dtype=F64), ASOFed()
    ctx = start(problem, method).context(0)
    state = method.server_init(ctx)
    client = problem.client(np.arange(5))
    received = method.broadcast(state, torch.arange(5))
    moves = method.client(client, received, method.client_init(client, received))[0]["dw"]
    ends = []
    for turn in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3]):
        now = state
        for k in turn:
            now = stepped(method, now, ctx, moves[[k]], [k], [int(ctx.sizes[k])])
        ends.append(now["x"])
    ends.append(stepped(method, state, ctx, moves, list(range(5)), ctx.sizes.tolist())["x"])
    for end in ends[1:]:
        assert torch.allclose(end, ends[0], atol=1e-15, rtol=0)


def test_the_shares_of_all_clients_sum_to_one_also_when_they_have_more_rows_than_the_server_knew() -> None:
    problem, method = make_problem("linear", dtype=F64), ASOFedF()
    ctx = start(problem, method).context(0)
    state = method.server_init(ctx)
    move = torch.randn(problem.model.n, dtype=F64, generator=torch.Generator().manual_seed(0))
    moved = stepped(method, state, ctx, move.repeat(5, 1), list(range(5)), [70, 3, 12, 500, 9])
    assert torch.allclose(state["x"] - moved["x"], move, atol=1e-15, rtol=0)


def test_a_single_reply_counts_for_its_rows_among_the_rows_that_there_are_then() -> None:
    """The server knew of 7 + 3 + 12 + 5 + 1 rows; the third client tells of 32: 32 of 48."""
    problem, method = make_problem("linear", dtype=F64), ASOFedF()
    ctx = start(problem, method).context(0)
    assert ctx.sizes.tolist() == [7, 3, 12, 5, 1]
    move = torch.ones(1, problem.model.n, dtype=F64)
    moved = stepped(method, method.server_init(ctx), ctx, move, [2], [32])
    assert torch.allclose(ctx.theta0 - moved["x"], move[0] * 2 / 3, atol=1e-15, rtol=0)


def test_target_clients_do_not_count() -> None:
    problem = make_problem("linear", dtype=F64, roles=[0, 0, 0, 1, 1])
    ctx = start(problem, ASOFedF()).context(0)
    move = torch.ones(1, problem.model.n, dtype=F64)
    moved = stepped(ASOFedF(), ASOFedF().server_init(ctx), ctx, move, [0], [7])
    assert torch.allclose(ctx.theta0 - moved["x"], move[0] * 7 / 22, atol=1e-15, rtol=0)


def multiplier(delays: list[float]) -> float:
    """By how much the dynamic step is longer in the last of these visits, of a client that begins anew each time."""
    problem, moves = line(-1.0), []
    for method in (ASOFed(lr=1e-9, steps=1, keep=False), ASOFedD(lr=1e-9, steps=1, keep=False)):
        received = {"x": torch.zeros(1, 1, dtype=F64)}
        memory: Memory = method.client_init(problem.client(np.array([0])), received)
        for delay in delays:
            client = problem.client(np.array([0]), delay=np.array([delay]))
            reply, memory = method.client(client, received, {**memory, "h": received["x"], "v": received["x"]})
        moves.append(float(reply["dw"]))
    return moves[0] / moves[1]


@pytest.mark.parametrize(
    ("delays", "r"),
    [
        ([10.0], math.log(10)),
        ([100.0], math.log(100)),
        ([10.0, 100.0], math.log(55)),
        ([10.0, 100.0, 1.0], math.log(37)),
        ([math.e**2], 2.0),
    ],
)
def test_the_step_grows_with_the_logarithm_of_the_mean_delay(delays: list[float], r: float) -> None:
    assert multiplier(delays) == pytest.approx(r, rel=1e-12)


@pytest.mark.parametrize("delays", [[0.0], [1.0], [2.718], [0.0, 5.4], [4.0, 0.5, 3.0]])
def test_the_step_is_as_it_is_while_the_mean_delay_is_at_most_e(delays: list[float]) -> None:
    assert multiplier(delays) == 1.0


def test_clients_of_one_stack_have_delays_of_their_own() -> None:
    problem, method = make_problem("linear", dtype=F64), ASOFed(lr=0.01, steps=1)
    received = {"x": start(problem, method).context(0).theta0}
    delay = np.array([0.0, 2.0, 10.0, 50.0, 100.0])
    client, plain = problem.client(np.arange(5), delay=delay), problem.client(np.arange(5))
    fast, slow = (method.client(d, received, method.client_init(d, received))[0]["dw"] for d in (plain, client))
    r = torch.tensor([[1.0], [1.0], [math.log(10)], [math.log(50)], [math.log(100)]], dtype=F64)
    assert torch.allclose(slow, r * fast, atol=1e-15, rtol=1e-12)


def test_a_client_that_keeps_its_model_is_pulled_towards_the_one_that_it_is_sent() -> None:
    method = ASOFed(lr=0.1, steps=1, lambda_=2.0)
    client = line(0.0).client(np.array([0]))
    zero, one = torch.zeros(1, 1, dtype=F64), torch.ones(1, 1, dtype=F64)
    memory = {"w": 3 * one, "h": zero, "v": zero, "delays": zero, "visits": zero}
    reply, kept = method.client(client, {"x": one}, memory)
    assert float(reply["dw"]) == pytest.approx(0.1 * (3 + 2 * (3 - 1)), rel=1e-15)
    assert float(method.settle(client, kept, reply, {"x": one})["w"]) == pytest.approx(3 - 0.7, rel=1e-15)


def test_a_model_that_begins_anew_feels_the_pull_from_the_second_iteration_on() -> None:
    client, received = line(0.0).client(np.array([0])), {"x": torch.ones(1, 1, dtype=F64)}
    moves = {}
    for steps in (1, 2):
        for pull in (0.0, 2.0):
            method = ASOFed(lr=0.1, steps=steps, lambda_=pull, keep=False)
            moves[steps, pull] = float(method.client(client, received, method.client_init(client, received))[0]["dw"])
    assert moves[1, 0.0] == moves[1, 2.0]
    assert moves[2, 0.0] != moves[2, 2.0]


# Feature learning


def layer(units: int = 64, inputs: int = 100) -> Tensor:
    """Weights of a first layer, the largest of which is 0.39."""
    w = torch.randn(units, inputs, dtype=F64, generator=torch.Generator().manual_seed(1))
    return w * (0.39 / w.abs().max())


def test_as_printed_feature_learning_makes_the_first_layer_vanish() -> None:
    """The soft-max over 64 units is about 1/64: each step divides by that."""
    w, largest = layer(), []
    for _ in range(5):
        w = weighted(w, keep_norms=False)
        largest.append(float(w.abs().max()))
    assert largest == pytest.approx([8.3e-3, 1.3e-4, 2.0e-6, 3.2e-8, 5.0e-10], rel=0.05)


def test_put_back_again_and_again_it_leaves_every_input_a_single_unit() -> None:
    w = layer()
    norms = torch.linalg.vector_norm(w, dim=0)
    for _ in range(1000):
        w = weighted(w)
    assert torch.allclose(torch.linalg.vector_norm(w, dim=0), norms, rtol=1e-11)
    assert torch.allclose(w.abs().amax(0), norms, rtol=1e-9)


def walked(features: Any, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first layer at the start, and what is kept and handed out of it after so many replies that change nothing."""
    data = make_data(shape=(6,))
    problem = Problem(data, build_model("mlp", data, hidden=[16]), dtype=F64)
    method = ASOFed(features=features)
    ctx = start(problem, method).context(0)
    state = method.server_init(ctx)
    for _ in range(steps):
        still = torch.zeros(5, problem.model.n, dtype=F64)
        state = stepped(method, state, ctx, still, list(range(5)), ctx.sizes.tolist())
    first = problem.model.slices["1.weight"]
    kept, out = (state[key][first.start : first.stop].view(first.shape) for key in ("x", "handed_out"))
    assert torch.equal(state["x"][first.stop :], ctx.theta0[first.stop :])
    return ctx.theta0[first.start : first.stop].view(first.shape), kept, out


def test_by_default_the_layer_is_weighted_once_however_long_the_run() -> None:
    w, kept, out = walked("norm", 1000)
    assert torch.equal(kept, w)
    assert torch.equal(out, weighted(w))
    assert torch.allclose(torch.linalg.vector_norm(out, dim=0), torch.linalg.vector_norm(w, dim=0), rtol=1e-14)
    assert not torch.allclose(out, w, atol=1e-3)


def test_the_other_forms_of_feature_learning_go_on_from_what_they_made() -> None:
    w, kept, out = walked("literal", 3)
    assert torch.equal(kept, out)
    assert torch.allclose(out, weighted(weighted(weighted(w, False), False), False), rtol=1e-14)
    w, kept, out = walked("repeated", 3)
    assert torch.equal(kept, out)
    assert torch.allclose(out, weighted(weighted(weighted(w))), rtol=1e-14)
    w, kept, out = walked("none", 3)
    assert torch.equal(kept, w)
    assert torch.equal(out, w)


NUMBERS = st.floats(-5, 5).map(lambda number: number if abs(number) > 1e-100 else 0.0)  # squares must not vanish
WEIGHTS = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=NUMBERS)


@given(WEIGHTS)
def test_what_an_inputs_units_are_weighted_by_sums_to_one(values: np.ndarray) -> None:
    w = torch.from_numpy(values)
    w = torch.where(w.abs() < 1e-6, torch.full_like(w, 0.5), w)
    assert torch.allclose((weighted(w, keep_norms=False) / w).sum(0), torch.ones(w.shape[1], dtype=F64), rtol=1e-12)


@given(WEIGHTS)
def test_kept_norms_are_kept_and_signs_too(values: np.ndarray) -> None:
    w = torch.from_numpy(values)
    after = weighted(w)
    norms, kept = (torch.linalg.vector_norm(part, dim=0) for part in (w, after))
    assert torch.allclose(kept, norms, rtol=1e-12, atol=1e-300)
    assert bool((after * w >= 0).all())


def test_larger_weights_of_an_input_gain_on_smaller_ones() -> None:
    after = weighted(torch.tensor([[1.0, 2.0], [0.5, -2.0]], dtype=F64))
    assert float(after[0, 0] / after[1, 0]) == pytest.approx(2 * math.e**0.5, rel=1e-12)
    assert after[:, 1].tolist() == pytest.approx([2.0, -2.0], rel=1e-12)


@pytest.mark.parametrize(
    ("model", "name", "inputs"), [("mlp", "1.weight", 6), ("lenet", "0.weight", 25), ("lstm", "lstm.weight_ih_l0", 3)]
)
def test_the_first_layer_is_found_in_every_kind_of_network(model: str, name: str, inputs: int) -> None:
    problem, method = make_problem(model), ASOFed(lr=0.05, epochs=1)
    assert first_layer(problem.model.slices) == problem.model.slices[name]
    engine = run(problem, method, 2)
    where = problem.model.slices[name]
    kept, out = (engine.state[key][where.start : where.stop].view(where.shape[0], -1) for key in ("x", "handed_out"))
    assert kept.shape[1] == inputs
    assert torch.allclose(torch.linalg.vector_norm(out, dim=0), torch.linalg.vector_norm(kept, dim=0), rtol=1e-5)
    assert not torch.equal(out, kept)
    found = method.report(engine.state, {})
    assert list(found) == [f"feature/{i}" for i in range(inputs)]
    assert list(found.values()) == pytest.approx(out.abs().mean(0).tolist(), rel=1e-6)


def test_many_inputs_are_not_told_of_one_by_one() -> None:
    engine = run(make_problem("linear", shape=(65,)), ASOFed(), 1)
    assert ASOFed().report(engine.state, {}) == {}


class Scaled(nn.Module):
    """A model without a layer: a factor for each column."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3] * self.factors


def test_a_model_without_a_first_layer_is_refused_unless_there_are_no_features_to_learn() -> None:
    problem = Problem(make_data(), Model(Scaled))
    with pytest.raises(
        ConfigError, match=r"the model has no weights with an input and an output side.*features = 'none'"
    ):
        start(problem, ASOFed())
    engine = run(problem, ASOFedF(), 2)
    assert ASOFedF().report(engine.state, {}) == {}
    assert not torch.equal(engine.theta(), engine.theta0)


def test_the_ablations_are_the_method_with_one_part_left_out() -> None:
    assert (ASOFedD().dynamic, ASOFedD().features) == (False, "norm")
    assert (ASOFedF().dynamic, ASOFedF().features) == (True, "none")
    whole = vars(ASOFed())
    assert {**vars(ASOFedD()), "dynamic": True} == whole
    assert {**vars(ASOFedF()), "features": "norm"} == whole
    assert replace(ASOFed()).default_schedule == "async"
