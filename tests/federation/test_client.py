from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedloom.federation.batches import Plan, Rows, steps_of
from fedloom.federation.client import Carry, Client
from fedloom.federation.model import Model
from fedloom.federation.optimisers import Adam, Momentum
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from problems import SIZES, LeastSquares, make_data, make_problem, visited

F64 = torch.float64
DRAW = Draw(11, 4)
EVERYBODY = list(range(len(SIZES)))
EFFORT = np.array([0.3, 1.0, 0.7, 0.55, 0.1])


PROBLEMS: dict[str, dict[str, Any]] = {
    "linear": {},
    "mlp": {"options": {"hidden": [7]}},
    "regression": {"model": "mlp", "task": "regression", "outputs": 2},
    "lenet": {},
    "problems:dropping": {},
}


def batches_of(problem: Problem, client: int, how: dict[str, Any], effort: float | None = None) -> list[list[int]]:
    owned = problem.data.splits[how.get("split", "train")]
    batch = how.get("batch")
    least = np.array([effort]) if effort is not None else None
    count = steps_of(
        owned.sizes.numpy()[[client]], batch, how.get("epochs", 1), how.get("steps"), least, how.get("budget")
    )
    return visited(Plan.of(owned.span(np.array([client])), np.array([client]), DRAW, batch, count))[client]


def by_hand(
    problem: Problem, client: int, theta: Tensor, lr: float, how: dict[str, Any], effort: float | None = None
) -> tuple[Tensor, int]:
    """The same local steps with a plain module, torch's losses and torch.optim."""
    module = problem.model.built().to(problem.dtype).eval()
    vector_to_parameters(theta.clone(), module.parameters())
    match how.get("optimiser"):
        case Momentum(beta):
            optimiser: torch.optim.Optimizer = torch.optim.SGD(module.parameters(), lr, momentum=beta)
        case Adam(beta1, beta2, epsilon):
            optimiser = torch.optim.Adam(module.parameters(), lr, (beta1, beta2), epsilon)
        case _:
            optimiser = torch.optim.SGD(module.parameters(), lr)
    batches = batches_of(problem, client, how, effort)
    for rows in batches:
        optimiser.zero_grad()
        out, y = module(problem.x[rows]), problem.y[rows]
        if problem.data.task == "classification":
            loss = nn.functional.cross_entropy(out, y)
        else:
            loss = nn.functional.mse_loss(out, y) / 2
        at = torch.cat([p.reshape(-1) for p in module.parameters()])
        if "pull" in how:
            mu, x0 = how["pull"]
            loss = loss + mu / 2 * (at - x0).square().sum()
        if "shift" in how:
            loss = loss + how["shift"] @ at
        loss.backward()
        optimiser.step()
    return parameters_to_vector(module.parameters()).detach(), len(batches)


def vectors(problem: Problem) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    n = problem.model.n
    return torch.randn(n, generator=g, dtype=problem.dtype), torch.randn(n, generator=g, dtype=problem.dtype) / 10


WAYS: dict[str, dict[str, Any]] = {
    "mini-batches": {"batch": 4, "epochs": 2},
    "batches larger than some clients": {"batch": 6, "epochs": 3},
    "single rows": {"batch": 1},
    "exact steps": {"batch": 4, "steps": 5},
    "full batch": {"batch": None, "epochs": 3},
    "another split": {"batch": 2, "epochs": 2, "split": "query"},
    "momentum": {"batch": 4, "epochs": 2, "optimiser": Momentum(0.8)},
    "adam": {"batch": 4, "epochs": 3, "optimiser": Adam()},
    "adam, full batch": {"batch": None, "steps": 4, "optimiser": Adam(0.8, 0.99, 1e-6)},
}


@pytest.mark.parametrize(
    ("model", "way", "extra"),
    [
        *(("mlp", way, extra) for way in WAYS for extra in ("", "pull", "shift", "pull and shift")),
        ("lstm", "mini-batches", "pull and shift"),
        ("lstm", "full batch", ""),
        ("lstm", "adam", "pull"),
    ],
)
def test_sgd_is_the_loop_that_one_would_write_by_hand(model: str, way: str, extra: str) -> None:
    problem = make_problem(model, dtype=F64, options={"hidden": [4]} if model == "mlp" else {"hidden": 3})
    x0, shift = vectors(problem)
    how = dict(WAYS[way])
    how |= {"pull": (0.3, x0)} if "pull" in extra else {}
    how |= {"shift": shift} if "shift" in extra else {}
    theta = problem.model.init(3, F64)
    stack = problem.client(EVERYBODY, DRAW)
    together, counts = stack.sgd(theta, 0.05, **how)
    assert counts.shape == (len(EVERYBODY), 1)
    for client in EVERYBODY:
        expected, steps = by_hand(problem, client, theta, 0.05, how)
        alone, count = problem.client(client, DRAW).sgd(theta, 0.05, **how)
        assert int(count) == int(counts[client]) == steps
        torch.testing.assert_close(alone, expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(together[client], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("model", ["linear", "lenet"])
def test_sgd_by_hand_for_other_models_and_less_effort(model: str) -> None:
    problem = make_problem(model, dtype=F64)
    theta = problem.model.init(3, F64)
    how = {"batch": 4, "epochs": 3}
    together, counts = problem.client(EVERYBODY, DRAW, effort=EFFORT).sgd(theta, 0.1, **how)
    for client in EVERYBODY:
        expected, steps = by_hand(problem, client, theta, 0.1, how, float(EFFORT[client]))
        assert int(counts[client]) == steps
        torch.testing.assert_close(together[client], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("optimiser", [None, Momentum(), Adam()])
def test_one_call_of_a_stack_is_its_clients_one_by_one(name: str, optimiser: Any) -> None:
    problem = make_problem(**{"model": name, **PROBLEMS[name]})
    theta = torch.stack([problem.model.init(seed, problem.dtype) for seed in EVERYBODY])
    x0, shift = vectors(problem)
    shifts = shift * torch.arange(len(EVERYBODY))[:, None]
    stack = problem.client(EVERYBODY, DRAW, effort=EFFORT)
    y, counts = stack.sgd(theta, 0.05, 4, 3, optimiser=optimiser, pull=(0.1, x0 + theta), shift=shifts)
    for i, client in enumerate(EVERYBODY):
        alone = problem.client(client, DRAW, effort=EFFORT[[i]])
        yi, count = alone.sgd(theta[i], 0.05, 4, 3, optimiser=optimiser, pull=(0.1, x0 + theta[i]), shift=shifts[i])
        torch.testing.assert_close(y[i], yi, rtol=1e-6, atol=1e-6)
        assert int(count) == int(counts[i])
        assert alone.evaluations[0] == stack.evaluations[i]


@pytest.mark.parametrize("name", PROBLEMS)
def test_twenty_rounds_of_a_stack_are_its_clients_one_by_one(name: str) -> None:
    problem = make_problem(**{"model": name, **PROBLEMS[name]}, dtype=F64)
    together = torch.stack([problem.model.init(seed, F64) for seed in EVERYBODY])
    apart = together.clone()
    for t in range(20):
        draw = Draw(2, t)
        together, _ = problem.client(EVERYBODY, draw, effort=EFFORT).sgd(together, 0.1, 4, 2)
        apart = torch.stack(
            [problem.client(i, draw, effort=EFFORT[[i]]).sgd(apart[i], 0.1, 4, 2)[0] for i in EVERYBODY]
        )
    assert float((together - apart).abs().max()) < 1e-10


@pytest.mark.parametrize("model", ["linear", "mlp", "lenet"])
@pytest.mark.parametrize("pulled", [False, True])
@pytest.mark.parametrize("optimiser", [None, Momentum()])
def test_every_client_may_have_its_own_step_size(model: str, pulled: bool, optimiser: Any) -> None:
    problem = make_problem(model, dtype=F64)
    theta, (x0, _) = problem.model.init(0, F64), vectors(problem)
    how: dict[str, Any] = {"optimiser": optimiser} | ({"pull": (0.2, x0)} if pulled else {})
    lr = torch.tensor([[0.1], [0.0], [0.03], [0.2], [0.05]], dtype=F64)
    y, _ = problem.client(EVERYBODY, DRAW).sgd(theta, lr, 4, 2, **how)
    assert torch.equal(y[1], theta)
    for i in EVERYBODY:
        one = problem.client(i, DRAW)
        as_number, _ = one.sgd(theta, float(lr[i]), 4, 2, **how)
        as_tensor, _ = one.sgd(theta, lr[i, 0], 4, 2, **how)
        torch.testing.assert_close(y[i], as_number, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(as_tensor, as_number, rtol=1e-12, atol=1e-12)


def test_a_free_direction_takes_the_place_of_the_gradient() -> None:
    problem = make_problem("mlp", dtype=F64)
    theta = problem.model.init(0, F64)
    x0, _ = vectors(problem)
    pulled, _ = problem.client(EVERYBODY, DRAW).sgd(theta, 0.1, 4, 2, pull=(0.5, x0))
    free, _ = problem.client(EVERYBODY, DRAW).sgd(theta, 0.1, 4, 2, direction=lambda y, g: g + 0.5 * (y - x0))
    torch.testing.assert_close(free, pulled, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_a_direction_may_ask_for_another_gradient(model: str) -> None:
    problem = make_problem(model, dtype=F64)
    theta = problem.model.init(0, F64)
    client = problem.client(2, DRAW)
    anchor = client.grad(theta)
    # with g − ∇f(θ) + ∇f(θ) nothing changes, unless the second gradient disturbs the walk
    free, _ = client.sgd(theta, 0.1, 4, 2, direction=lambda y, g: g - client.grad(theta) + anchor)
    plain, _ = client.sgd(theta, 0.1, 4, 2)
    torch.testing.assert_close(free, plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("model", ["linear", "mlp", "lenet", "problems:dropping"])
def test_a_client_without_rows_stays_where_it_is(model: str) -> None:
    problem = make_problem(model, sizes=(4, 0, 6, 0), dtype=F64)
    theta = problem.model.init(0, F64)
    client = problem.client([0, 1, 2, 3], DRAW)
    y, counts = client.sgd(theta, 0.1, 4, 2, pull=(0.1, theta + 1))
    assert torch.equal(y[1], theta)
    assert torch.equal(y[3], theta)
    assert counts[:, 0].tolist() == [2, 0, 4, 0]
    assert client.evaluations.tolist() == [8, 0, 12, 0]
    g = client.grad(theta)
    assert not g[[1, 3]].any()
    assert g[[0, 2]].any(1).all()
    assert torch.equal(problem.client([1, 3], DRAW).grad(theta), torch.zeros(2, problem.model.n, dtype=F64))
    assert torch.equal(problem.client(1, DRAW).grad(theta), torch.zeros(problem.model.n, dtype=F64))
    assert problem.client(3, DRAW).loss(theta) == 0
    assert torch.equal(problem.client(3, DRAW).sgd(theta, 0.1)[0], theta)


def test_the_vector_that_was_given_is_not_changed() -> None:
    for model in ("mlp", "lenet"):
        problem = make_problem(model)
        theta = problem.model.init(0)
        stack = theta.expand(5, -1).clone()
        before = theta.clone()
        y, _ = problem.client(EVERYBODY, DRAW).sgd(stack, 0.1, 4)
        z, _ = problem.client(2, DRAW).sgd(theta, 0.1, 4)
        problem.client(3, DRAW).sgd(theta, 0.1, 4)
        assert torch.equal(theta, before)
        assert torch.equal(stack, before.expand(5, -1))
        assert torch.allclose(y[2], z, atol=1e-6)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"batch": 4, "epochs": 2}, [14, 6, 24, 10, 2]),
        ({"batch": 4, "steps": 3}, [4 + 3 + 4, 9, 12, 4 + 1 + 4, 3]),
        ({"batch": None, "epochs": 3}, [21, 9, 36, 15, 3]),
        ({"batch": 5, "epochs": 1, "split": "query"}, [4, 2, 6, 3, 1]),
    ],
)
@pytest.mark.parametrize("model", ["linear", "lenet"])
def test_gradient_evaluations_are_the_rows_that_were_visited(
    model: str, how: dict[str, Any], expected: list[int]
) -> None:
    problem = make_problem(model)
    client = problem.client(EVERYBODY, DRAW)
    client.sgd(problem.model.init(0), 0.1, **how)
    assert client.evaluations.tolist() == expected
    client.grad(problem.model.init(0), "support")
    more = [3, 1, 6, 2, 0]
    assert client.evaluations.tolist() == [a + b for a, b in zip(expected, more, strict=True)]


def test_a_budget_cuts_the_steps_and_an_infinite_one_does_not() -> None:
    problem = make_problem("linear")
    budget = np.array([8.0, np.inf, 0.0, 9.0, 100.0])
    client = problem.client(EVERYBODY, DRAW, budget=budget)
    _, counts = client.sgd(problem.model.init(0), 0.1, 4, 5)
    assert counts[:, 0].tolist() == [2, 5, 1, 3, 5]
    assert (client.evaluations <= np.maximum(budget, 4)).all()


@pytest.mark.parametrize("model", ["linear", "mlp", "lenet", "lstm"])
@pytest.mark.parametrize("split", ["train", "support"])
def test_the_gradient_is_that_of_the_mean_loss(model: str, split: str) -> None:
    problem = make_problem(model, dtype=F64)
    theta = torch.stack([problem.model.init(seed, F64) for seed in EVERYBODY])
    stack = problem.client(EVERYBODY, DRAW)
    gradients, losses = stack.grad(theta, split), stack.loss(theta, split)
    for i in EVERYBODY:
        rows = problem.data.splits[split][i]
        one = theta[i].clone().requires_grad_()
        if len(rows):
            mean = nn.functional.cross_entropy(problem.model(one, problem.x[rows]), problem.y[rows])
            (expected,) = torch.autograd.grad(mean, one)
            torch.testing.assert_close(losses[i], mean.detach(), rtol=1e-12, atol=1e-12)
        else:
            expected = torch.zeros_like(one)
        alone = problem.client(i, DRAW).grad(theta[i], split)
        torch.testing.assert_close(gradients[i], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(alone, expected, rtol=1e-12, atol=1e-12)
        assert alone.requires_grad is False


def test_one_vector_for_the_whole_stack_is_the_same_vector_for_each() -> None:
    problem = make_problem("mlp", dtype=F64)
    theta = problem.model.init(0, F64)
    client = problem.client(EVERYBODY, DRAW)
    torch.testing.assert_close(client.grad(theta), client.grad(theta.expand(5, -1).clone()))
    torch.testing.assert_close(client.loss(theta), client.loss(theta.expand(5, -1).clone()))


def test_a_gradient_at_a_vector_that_carries_a_graph_needs_no_graph_of_its_own() -> None:
    for model in ("mlp", "lenet"):
        problem = make_problem(model, dtype=F64)
        theta = problem.model.init(0, F64)
        tracked = theta.clone().requires_grad_() * 1
        client = problem.client([0, 1], DRAW)
        gradient = client.grad(tracked)
        assert not gradient.requires_grad
        assert torch.equal(gradient, client.grad(theta))


def test_large_gradients_are_made_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem("mlp", dtype=F64)
    theta = problem.model.init(0, F64)
    client = problem.client(EVERYBODY, DRAW)
    whole = client.grad(theta)
    monkeypatch.setattr("fedloom.federation.client._GRADIENT_ROWS", 5 * 6 * 5)
    torch.testing.assert_close(client.grad(theta), whole, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_gradient_with_a_graph_gives_the_hessian_of_a_quadratic(stacked: bool) -> None:
    squares = LeastSquares()
    client = squares.problem.client([0, 1, 2, 3] if stacked else 1, DRAW)
    g = torch.Generator().manual_seed(0)
    theta, v = torch.randn(2, 3, generator=g, dtype=F64)
    theta.requires_grad_()
    gradient = client.grad(theta, graph=True)
    a, best = (squares.hessians, squares.minimisers) if stacked else (squares.hessians[1], squares.minimisers[1])
    expected = (a @ (theta - best).unsqueeze(-1))[..., 0]
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)
    (product,) = torch.autograd.grad((gradient * v).sum(), theta)
    torch.testing.assert_close(product, (a.sum(0) if stacked else a) @ v, rtol=1e-12, atol=1e-12)


def test_the_meta_gradient_of_quadratics_has_its_closed_form() -> None:
    squares = LeastSquares()
    problem, alpha = squares.problem, 0.05
    theta = torch.randn(3, dtype=F64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    client = problem.client(2, DRAW)
    phi = theta - alpha * client.grad(theta, "support", graph=True)
    (meta,) = torch.autograd.grad(client.loss(phi, "query"), theta)
    support = problem.x[problem.data.splits["support"][2]]
    hessian = support.T @ support / len(support)
    outer = client.grad(phi.detach(), "query")
    torch.testing.assert_close(meta, (torch.eye(3, dtype=F64) - alpha * hessian) @ outer, rtol=1e-10, atol=1e-12)


def test_a_graph_reaches_convolutions_too() -> None:
    problem = make_problem("lenet", dtype=F64)
    theta = torch.stack([problem.model.init(s, F64) for s in range(2)]).requires_grad_()
    gradient = problem.client([0, 1], DRAW).grad(theta, graph=True)
    torch.testing.assert_close(gradient.detach(), problem.client([0, 1], DRAW).grad(theta.detach()))
    (second,) = torch.autograd.grad(gradient.square().sum(), theta)
    assert second.any(1).all()


def stepping(client: Client, lr: float) -> Callable[[Carry, Rows], Carry]:
    """A plain gradient step, which also counts itself."""
    return lambda now, rows: {"y": now["y"] - lr * client.grad(now["y"], rows), "count": now["count"] + 1}


@pytest.mark.parametrize("model", ["mlp", "lenet"])
@pytest.mark.parametrize("how", [{"batch": 4, "epochs": 2}, {"batch": 4, "steps": 5}, {"steps": 3}])
@pytest.mark.parametrize("slow", [{}, {"effort": 0.5}, {"budget": 13.0}])
def test_a_scan_takes_the_steps_that_sgd_takes(model: str, how: dict[str, int], slow: dict[str, float]) -> None:
    problem = make_problem(model, dtype=F64)
    theta = problem.model.init(0, F64)
    part: Any = {key: np.full(5, value) for key, value in slow.items()}
    one, other = problem.client(range(5), DRAW, **part), problem.client(range(5), DRAW, **part)
    y, count = one.sgd(theta, 0.1, **how)  # type: ignore[arg-type]
    start = {"y": theta.expand(5, -1), "count": torch.zeros(5, 1, dtype=F64)}
    after, taken = other.scan(stepping(other, 0.1), start, **how)  # type: ignore[arg-type]
    torch.testing.assert_close(after["y"], y, rtol=1e-10, atol=1e-12)
    assert torch.equal(taken, count)
    assert torch.equal(after["count"], count)
    assert other.evaluations.tolist() == one.evaluations.tolist()


def test_a_scan_of_one_client_is_its_row_of_the_stacks_scan() -> None:
    problem = make_problem("mlp", dtype=F64)
    theta = problem.model.init(0, F64)
    stack = problem.client(range(5), DRAW)
    start = {"y": theta.expand(5, -1), "count": torch.zeros(5, 1, dtype=F64)}
    together, _ = stack.scan(stepping(stack, 0.1), start, batch=4, epochs=2)
    for number in range(5):
        client = problem.client(number, DRAW)
        own = {"y": theta, "count": torch.zeros(1, dtype=F64)}
        alone, taken = client.scan(stepping(client, 0.1), own, batch=4, epochs=2)
        torch.testing.assert_close(alone["y"], together["y"][number], rtol=1e-10, atol=1e-12)
        assert float(alone["count"]) == float(taken) == float(together["count"][number])


def test_every_step_of_a_scan_has_a_dropout_of_its_own() -> None:
    problem = make_problem("problems:dropping", dtype=F64)
    theta = problem.model.init(0, F64)
    gradients: list[Tensor] = []

    def look(now: Carry, rows: Rows) -> Carry:
        gradients.append(client.grad(theta, rows))
        return now

    client = problem.client([0, 1], DRAW)
    client.scan(look, {"y": theta.expand(2, -1)}, steps=3)
    first, second, third = gradients
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
    assert torch.equal(first, problem.client([0, 1], DRAW).grad(theta))
    assert torch.equal(client.grad(theta), first)


def test_rows_are_padded_with_weight_0_and_weigh_1_together() -> None:
    problem = make_problem("linear", dtype=F64)
    rows = problem.client([2, 1], DRAW).rows()
    assert rows.x.shape == (2, 12, 6)
    assert rows.y.shape == (2, 12)
    torch.testing.assert_close(rows.weight.sum(1), torch.ones(2, dtype=F64), rtol=0, atol=1e-15)
    assert float(rows.weight[1, 0]) == 1 / 3
    assert not rows.weight[1, 3:].any()
    assert torch.equal(rows.x[1, :3], problem.x[problem.data.splits["train"][1]])
    alone = problem.client(1, DRAW).rows()
    assert alone.x.shape == (3, 6)


def test_a_client_knows_its_size_in_the_shape_of_vectors() -> None:
    problem = make_problem("linear")
    assert problem.client(2, DRAW).n.shape == ()
    assert problem.client([2, 0], DRAW).n.tolist() == [[12.0], [7.0]]
    assert problem.client([2, 0], DRAW).sizes("test").tolist() == [4, 2]
    assert problem.client(2, DRAW).round == 4


def test_dropout_is_each_clients_own_reproducible_and_hidden_from_torch() -> None:
    problem = make_problem("problems:dropping", sizes=(9, 9, 9), dtype=F64)
    theta = problem.model.init(0, F64)
    before = torch.get_rng_state()
    first, _ = problem.client([0, 1, 2], DRAW).sgd(theta, 0.1, 4, 2)
    gradients = problem.client([0, 1, 2], DRAW).grad(theta)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(77)
    again, _ = problem.client([2, 0], DRAW).sgd(theta, 0.1, 4, 2)
    assert torch.equal(again, first[[2, 0]])
    assert torch.equal(problem.client([2, 0], DRAW).grad(theta), gradients[[2, 0]])
    assert torch.equal(problem.client(1, DRAW).grad(theta), gradients[1])
    other, _ = problem.client([0, 1, 2], Draw(11, 5)).sgd(theta, 0.1, None)
    same, _ = problem.client([0, 1, 2], Draw(11, 6)).sgd(theta, 0.1, None)
    assert not torch.equal(other, same)  # full-batch steps differ by their dropout alone


def test_dropout_is_for_training_only() -> None:
    problem = make_problem("problems:dropping", dtype=F64)
    theta = problem.model.init(0, F64)
    problem.client([0, 1], DRAW).sgd(theta, 0.1, 4)
    assert torch.equal(problem.model(theta, problem.x), problem.model(theta, problem.x))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.body(x))))


def test_padding_does_not_enter_the_statistics_of_a_batch() -> None:
    data = make_data(sizes=(7, 3, 12))
    problem = Problem(data, Model(Normed), dtype=F64)
    theta = problem.model.init(0, F64)
    together = problem.client([0, 1, 2], DRAW).grad(theta)
    for client in range(3):
        torch.testing.assert_close(together[client], problem.client(client, DRAW).grad(theta))
        rows = data.splits["train"][client]
        one = theta.clone().requires_grad_()
        mean = nn.functional.cross_entropy(problem.model(one, problem.x[rows]), problem.y[rows])
        torch.testing.assert_close(together[client], torch.autograd.grad(mean, one)[0], rtol=1e-10, atol=1e-12)
