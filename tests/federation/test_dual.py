"""Coordinate ascent in the dual: conjugates, the subproblem of a client, both loops, dense and sparse rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedloom
from fedloom.errors import ConfigError
from fedloom.federation import coordinates, dual
from fedloom.federation.client import Client
from fedloom.federation.data import FederatedData, Task
from fedloom.federation.losses import LOSSES, loss_for
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw

F64 = torch.float64
SIZES = (13, 1, 0, 22)
KINDS: dict[str, Task] = {
    "hinge": "binary",
    "smoothed-hinge:0.5": "binary",
    "binary": "binary",
    "squared": "regression",
    "ovr-hinge": "classification",
}


def make_problem(
    loss: str = "hinge", density: float = 1.0, bias: bool = True, features: int = 11, dtype: torch.dtype = F64
) -> fedloom.Problem:
    random = np.random.default_rng(3)
    n, task = sum(SIZES), KINDS[loss]
    x = random.standard_normal((n, features)) * (random.uniform(size=(n, features)) < density)
    score = x @ random.standard_normal(features) + random.standard_normal(n)
    labels = {
        "binary": torch.from_numpy((score > 0).astype(float))[:, None],
        "regression": torch.from_numpy(np.stack([score, -score / 2], 1)),
        "classification": torch.from_numpy(np.digitize(score, [-1.0, 1.0])),
    }
    classes = ("a", "b", "c") if task == "classification" else ()
    splits = {"train": Ragged.contiguous(torch.tensor(SIZES)), "test": Ragged.contiguous(torch.zeros(4, dtype=int))}
    data = FederatedData("made up", torch.from_numpy(x), labels[task], task, splits, classes=classes)
    return fedloom.Problem(data, fedloom.build_model("linear", data, bias=bias), loss, dtype)


def start(client: Client) -> tuple[Tensor, Tensor]:
    """Some α that can be, and some w that does not follow from it."""
    model = client.problem.model
    w = torch.linspace(-0.3, 0.4, model.n, dtype=client.problem.dtype)
    alpha, _ = client.ascend(client.duals(), 0 * w, 1.0, 0.1, steps=3)
    assert int((alpha != 0).any(-1).sum()) == sum(min(n, 3) for n in client.sizes())
    return alpha, w


@given(
    st.sampled_from(["hinge", "smoothed-hinge", "smoothed-hinge:0.1", "binary", "squared"]),
    st.floats(-20, 20),
    st.sampled_from([0.0, 1.0]),
    st.floats(0, 1),
)
def test_a_loss_and_its_conjugate_obey_fenchel_and_meet_at_the_slope(
    name: str, out: float, label: float, beta: float
) -> None:
    loss, at, y = LOSSES.find(name), torch.tensor([[out]], dtype=F64), torch.tensor([[label]], dtype=F64)
    alpha = torch.tensor([[beta * (2 * label - 1)]], dtype=F64)
    slope = loss.slope(at, y)
    assert float(loss.rows(at, y) + loss.conjugate(alpha, y) + (alpha * at).sum()) >= -1e-12
    assert float(loss.rows(at, y) + loss.conjugate(-slope, y) - (slope * at).sum()) == pytest.approx(0, abs=1e-12)


def test_a_dual_number_outside_has_an_infinite_conjugate() -> None:
    y = torch.tensor([[1.0], [0.0]], dtype=F64)
    for name in ("hinge", "smoothed-hinge", "binary"):
        assert torch.isinf(LOSSES[name].conjugate(torch.tensor([[1.01], [0.01]], dtype=F64), y)).all()
        assert torch.isfinite(LOSSES[name].conjugate(torch.tensor([[1.0], [-1.0]], dtype=F64), y)).all()


def test_a_smoothed_hinge_comes_to_the_hinge_and_names_its_width() -> None:
    out, y = torch.linspace(-3, 3, 41, dtype=F64)[:, None], torch.ones(41, 1, dtype=F64)
    narrow = LOSSES.find("smoothed-hinge:1e-9")
    assert narrow.name == "smoothed-hinge:1e-9"
    assert torch.allclose(narrow.rows(out, y), LOSSES["hinge"].rows(out, y), atol=1e-8)
    with pytest.raises(ConfigError, match="γ must be a number above 0; for γ = 0 choose 'hinge'"):
        loss_for("binary", "smoothed-hinge:0")
    with pytest.raises(ConfigError, match="'hinge' takes no number after its name"):
        loss_for("binary", "hinge:0.5")


@given(
    st.sampled_from([0, 1, 2]), st.floats(0, 1), st.floats(-30, 30), st.floats(0, 1e4), st.floats(0, 2), st.booleans()
)
def test_a_coordinate_step_is_the_best_one(
    kind: int, beta: float, score: float, q: float, gamma: float, side: bool
) -> None:
    """−φ*(−α') − (α' − α)·score − (q/2)(α' − α)² is concave: no better α' is nearby, and it is a root of the slope."""
    from fedloom.federation.compiled import stepped

    target = 1.0 if side else -1.0
    found = stepped(kind, gamma, beta * target, target, score, q)
    if kind == 1:
        assert abs(target - score - found - q * (found - beta * target)) <= 1e-9 * (1 + q + abs(score))
        return
    b, m = found * target, score * target
    assert 0 <= b <= 1
    if kind == 2 and 1e-12 < b < 1 - 1e-12:
        assert abs(np.log(b) - np.log1p(-b) + m + q * (b - beta)) <= 1e-9 * (1 + q) * max(1, 1e-6 / (b * (1 - b)))
    if kind == 0:
        slope = 1 - gamma * b - m - q * (b - beta)
        assert slope <= 1e-9 * (1 + q + abs(m)) or b == 1
        assert slope >= -1e-9 * (1 + q + abs(m)) or b == 0


@pytest.mark.parametrize("loss", KINDS)
@pytest.mark.parametrize("density", [1.0, 0.1])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_both_loops_agree(loss: str, density: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    found: list[list[Tensor]] = []
    for loop in (coordinates.Compiled, coordinates.Plain):
        monkeypatch.setattr(dual, "loop", loop)
        monkeypatch.setattr(coordinates, "loop", loop)
        problem = make_problem(loss, density, dtype=dtype)
        assert (problem.design.sparse is not None) is (density < 1)
        client = problem.client(np.arange(4), Draw(5))
        alpha, w = start(client)
        after, _ = client.ascend(alpha, w, 2.0, 0.1, epochs=3, order="random")
        parts = client.subproblem(alpha, after, w, 2.0, 0.1, tolerance=0.1)
        found.append([after, client.combined(after, 0.1), client.primal(w, 0.1), client.conjugate(after, 0.1), *parts])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one.double(), other.double(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", KINDS)
def test_sparse_rows_have_the_bits_of_dense_ones(loss: str) -> None:
    problem = make_problem(loss, 0.1)
    ends = []
    for sparse in (problem.design.sparse, None):
        problem.design.sparse = sparse
        client = problem.client(np.arange(4), Draw(5))
        alpha, w = start(client)
        ends.append(client.ascend(alpha, w, 2.0, 0.1, epochs=3)[0])
        ends.append(client.combined(ends[-1], 0.1))
    assert torch.equal(ends[0], ends[2])
    assert torch.equal(ends[1], ends[3])


@pytest.mark.parametrize("loss", KINDS)
def test_a_client_has_the_same_bits_alone_and_in_a_stack(loss: str) -> None:
    problem = make_problem(loss)
    stack = problem.client(np.arange(4), Draw(5))
    alpha, w = start(stack)
    kappa = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=F64)
    after, steps = stack.ascend(alpha, w, kappa, kappa / 10, epochs=2)
    assert steps.flatten().tolist() == [2.0 * n for n in SIZES]
    assert stack.evaluations.tolist() == [2 * n + 3 * (n > 0) for n in SIZES]
    for i, n in enumerate(SIZES):
        alone = stack.alone(i)
        own, taken = alone.ascend(alpha[i, :n], w, float(kappa[i]), float(kappa[i]) / 10, epochs=2)
        assert torch.equal(own, after[i, :n])
        assert float(taken) == 2 * n
        for name in ("combined", "conjugate"):
            whole = getattr(stack, name)(after, kappa / 10)[i]
            assert torch.equal(getattr(alone, name)(own, float(kappa[i]) / 10), whole)
        assert torch.equal(alone.primal(w, 0.1), stack.primal(w, 0.1)[i])


@pytest.mark.parametrize("loss", KINDS)
def test_what_rows_combine_to_is_the_sum_over_them(loss: str) -> None:
    problem = make_problem(loss)
    client = problem.client(3)
    alpha, w = start(client)
    _, share = problem.loss.parts(client.rows().y, alpha.shape[-1])
    z = torch.cat([client.rows().x, torch.ones(SIZES[3], 1, dtype=F64)], 1)
    v = (0.1 * share * alpha).T @ z
    assert torch.allclose(client.combined(alpha, 0.1), torch.cat([v[:, :-1].flatten(), v[:, -1]]), atol=1e-14)
    assert float(client.primal(w, 0.1)) == pytest.approx(0.1 * SIZES[3] * float(client.loss(w)), rel=1e-12)


@pytest.mark.parametrize("loss", KINDS)
def test_many_steps_find_the_minimum_of_the_subproblem(loss: str) -> None:
    """At it Fenchel's inequality is an equality in every row, for u = w + κA."""
    problem = make_problem(loss)
    client = problem.client(3)
    alpha, w = start(client)
    after, _ = client.ascend(alpha, w, 2.0, 0.1, accuracy=1e-10)
    before, now, least = client.subproblem(alpha, after, w, 2.0, 0.1, tolerance=1e-12)
    assert 0 <= float((now - least) / (before - least)) <= 1e-10
    u = w + 2.0 * (client.combined(after, 0.1) - client.combined(alpha, 0.1))
    row = problem.model(u, client.rows().x)
    y, share = client.rows().y, problem.loss.parts(client.rows().y, after.shape[-1])[1]
    gaps = problem.loss.rows(row, y) + problem.loss.conjugate(after, y) + (share * after * row).sum(-1)
    assert float(gaps.min()) >= -1e-12
    assert float(0.1 * gaps.sum()) <= 1e-9


@pytest.mark.parametrize("accuracy", [0.5, 0.1])
def test_a_local_accuracy_is_reached_and_measured(accuracy: float) -> None:
    client = make_problem("hinge").client(np.array([0, 3]), Draw(2))
    alpha, w = start(client)
    after, steps = client.ascend(alpha, w, 2.0, 0.1, accuracy=accuracy)
    before, now, least = client.subproblem(alpha, after, w, 2.0, 0.1)
    theta = (now - least) / (before - least)
    assert ((theta >= 0) & (theta <= accuracy)).all()
    assert (steps.flatten() % torch.tensor([SIZES[0], SIZES[3]]) == 0).all()


@settings(max_examples=20)
@given(st.floats(0.0, 1.0), st.integers(1, 100))
def test_effort_and_budget_cut_the_coordinate_steps(effort: float, budget: int) -> None:
    problem = make_problem("squared")
    for how in ({"epochs": 2}, {"accuracy": 0.1}):
        whole = problem.client(3, Draw(2))
        alpha, w = start(whole)
        _, all_steps = whole.ascend(alpha, w, 2.0, 0.1, **how)
        slow = problem.client(3, Draw(2), effort=np.array([effort]))
        _, fewer = slow.ascend(alpha, w, 2.0, 0.1, **how)
        assert int(fewer) == max(1, int(float(all_steps) * effort + 1e-9))
        poor = problem.client(3, Draw(2), budget=np.array([float(budget)]))
        _, paid = poor.ascend(alpha, w, 2.0, 0.1, **how)
        assert int(paid) == poor.evaluations[0] == min(budget, int(all_steps))


def test_a_client_can_have_a_loss_of_its_own() -> None:
    problem = make_problem("hinge")
    stack = problem.client(np.arange(4), Draw(5))
    losses = [LOSSES["binary"], LOSSES["hinge"], LOSSES["hinge"], LOSSES.find("smoothed-hinge:0.5")]
    _, w = start(stack)
    after, _ = stack.ascend(stack.duals(), w, 2.0, 0.1, loss=losses)
    for i, loss in enumerate(losses):
        alone = stack.alone(i)
        own, _ = alone.ascend(alone.duals(), w, 2.0, 0.1, loss=loss)
        assert torch.equal(own, after[i, : SIZES[i]])
        assert torch.equal(alone.primal(w, 0.1, loss), stack.primal(w, 0.1, losses)[i])


def test_class_weights_multiply_what_a_row_counts_for() -> None:
    problem = make_problem("hinge")
    heavy = fedloom.Problem(problem.data, problem.model, "hinge", F64, class_weights=[1.0, 3.0])
    a, b = problem.client(3), heavy.client(3)
    alpha, _ = start(a)
    y = a.rows().y
    each = torch.where(y > 0, 3 * alpha, alpha)
    assert torch.allclose(b.combined(alpha, 0.1), a.combined(each, 0.1), atol=1e-14)
    assert float(b.conjugate(alpha, 0.1)) == pytest.approx(float(-(0.1 * each * (2 * y - 1)).sum()), rel=1e-12)


def test_a_row_of_zeros_and_a_row_that_counts_for_nothing_do_no_harm() -> None:
    problem = make_problem("hinge", bias=False)
    x = problem.data.x.clone()
    x[-1] = 0
    none = fedloom.Problem(replace(problem.data, x=x), problem.model, "hinge", F64, class_weights=[0.0, 1.0])
    client = none.client(3)
    after, _ = client.ascend(client.duals(), torch.zeros(none.model.n, dtype=F64), 1.0, 1.0)
    y = client.rows().y[:, 0]
    assert torch.isfinite(after).all()
    assert bool((after[y == 0] == 0).all())
    assert float(after[-1]) == float(y[-1])


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("classification", r"'cross-entropy' has none here; set one class against the rest \(ovr-hinge.*positive"),
        ("absolute", "'absolute' has none here; set one of the losses squared"),
        ("mlp", "needs a linear model.*no strong duality.*Set model = 'linear'"),
    ],
)
def test_what_has_no_dual_is_refused_with_the_remedy(task: str, said: str) -> None:
    data = make_problem("squared" if task == "absolute" else "ovr-hinge").data
    model = fedloom.build_model("mlp" if task == "mlp" else "linear", data)
    with pytest.raises(ConfigError, match=said):
        dual.check_dual(fedloom.Problem(data, model, "absolute" if task == "absolute" else "auto"), "cocoa")


def test_rows_that_were_moved_into_shared_memory_are_read_where_they_are_now() -> None:
    problem = make_problem("hinge")
    client = problem.client(np.arange(2), Draw(0))
    before = client.ascend(client.duals(), torch.zeros(problem.model.n, dtype=F64), 1.0, 1.0)[0]
    old = problem.design
    problem.data.x.share_memory_()
    after = client.ascend(client.duals(), torch.zeros(problem.model.n, dtype=F64), 1.0, 1.0)[0]
    assert problem.design is not old
    assert torch.equal(before, after)
    assert problem.on(problem.data).design is problem.design
