from __future__ import annotations

from pathlib import Path

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedloom.errors import ConfigError, DataError
from fedloom.federation.relations import (
    Clustered,
    Fixed,
    Laplacian,
    Learned,
    Mean,
    Probabilistic,
    Relation,
    Strengths,
    conjugate,
    correlations,
    relation_for,
    safe,
    spread,
)

LEARNED: list[Learned] = [Probabilistic(), Probabilistic(0.3), Clustered(2, 0.1), Clustered(3, 0.5)]
EVERY: list[Relation] = [*LEARNED, Mean(), Laplacian("0-1,1-2:0.5,2-3:2,3-4")]
SHAPES = [(5, 3), (5, 5), (5, 8), (6, 1)]


def models(tasks: int = 5, features: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(tasks, features, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def learnt(relation: Relation, w: Tensor) -> Tensor:
    found = relation.learned(w)
    assert found is not None
    return found.matrix()


def cost(w: Tensor, omega: Tensor) -> float:
    return float((w * (omega @ w)).sum())


@pytest.mark.parametrize("relation", LEARNED, ids=str)
@pytest.mark.parametrize("shape", [(4, 3), (4, 6)], ids=str)
def test_no_convex_solver_finds_a_better_relation(relation: Learned, shape: tuple[int, int]) -> None:
    w = models(*shape)
    low, high, total = relation.range(4)
    a = cvxpy.Variable((4, 4), symmetric=True)
    bounds = [a >> low * np.eye(4), a << high * np.eye(4), cvxpy.trace(a) == total]
    least = cvxpy.sum([cvxpy.matrix_frac(column, a) for column in w.numpy().T])
    problem = cvxpy.Problem(cvxpy.Minimize(least), bounds)
    problem.solve(solver="CLARABEL")
    found = learnt(relation, w)
    assert cost(w, found) == pytest.approx(relation.factor * problem.value, rel=1e-6)
    assert torch.linalg.inv(found).numpy() * relation.factor == pytest.approx(a.value, abs=1e-3)


@pytest.mark.parametrize("relation", LEARNED, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_is_learnt_is_within_its_bounds_whatever_the_shape_of_the_models(
    relation: Learned, shape: tuple[int, int]
) -> None:
    low, high, total = relation.range(shape[0])
    covariance = relation.factor * torch.linalg.inv(learnt(relation, models(*shape)))
    values = torch.linalg.eigvalsh(covariance)
    assert float(covariance.trace()) == pytest.approx(total, rel=1e-9)
    assert low * (1 - 1e-9) <= float(values[0])
    assert float(values[-1]) <= high * (1 + 1e-9)


def test_with_few_tasks_the_covariance_is_the_root_of_the_models_products() -> None:
    w = models(3, 7)
    values, vectors = torch.linalg.eigh(w @ w.T)
    root = vectors @ torch.diag(values.sqrt()) @ vectors.T
    assert torch.allclose(torch.linalg.inv(learnt(Probabilistic(1e-6), w)), root / root.trace(), atol=1e-12)


def test_the_cost_of_the_best_covariance_is_the_square_of_the_trace_norm() -> None:
    w = models(4, 6)
    norm = float(torch.linalg.matrix_norm(w, "nuc"))
    assert cost(w, learnt(Probabilistic(1e-9), w)) == pytest.approx(norm**2, rel=1e-9)


def test_planted_clusters_are_found_and_their_relation_is_the_variance_within_them() -> None:
    own = torch.tensor([0, 0, 1, 1, 1])
    centres = torch.tensor([[3.0, 1.0], [-1.0, 3.0]], dtype=torch.float64)
    w = centres[own]
    relation = Clustered(2, 0.1)
    found = learnt(relation, w)
    projection = (own[:, None] == own).double() / torch.bincount(own)[own].double()
    m = relation.factor * torch.linalg.inv(found) - 0.1 * torch.eye(5, dtype=torch.float64)
    assert torch.allclose(m, projection, atol=1e-9)
    moved = w + models(5, 2, 3)
    within = moved - projection @ moved
    assert cost(moved, found) == pytest.approx(float(within.square().sum() + 0.1 * moved.square().sum()), rel=1e-9)


@pytest.mark.parametrize("relation", EVERY, ids=str)
@given(seed=st.integers(0, 10**6), related=st.floats(0.01, 10), small=st.floats(0.01, 10))
@settings(max_examples=15)
def test_the_conjugate_is_that_of_the_regulariser(relation: Relation, seed: int, related: float, small: float) -> None:
    strengths, w, v = Strengths(related, small), models(seed=seed), models(seed=seed + 1)
    omega = learnt(relation, models(seed=seed + 2)) if isinstance(relation, Learned) else relation.start(5)
    mbar = strengths.mbar(omega)
    slack = float(strengths.value(w, omega) + conjugate(v, mbar) - (v * w).sum())
    assert slack >= -1e-9
    best = mbar @ v  # where Fenchel's inequality is an equality
    slack = float(strengths.value(best, omega) + conjugate(v, mbar) - (v * best).sum())
    assert abs(slack) <= 1e-8 * float(1 + (v * best).sum().abs())


@pytest.mark.parametrize("relation", LEARNED, ids=str)
def test_both_ways_to_the_inverse_agree(relation: Learned) -> None:
    strengths, spectral = Strengths(0.3, 0.02), relation.learned(models(6, 4))
    assert spectral is not None
    assert torch.allclose(strengths.mbar_of(spectral), strengths.mbar(spectral.matrix()), rtol=1e-9, atol=1e-12)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20)
def test_tasks_that_all_move_cost_no_more_than_the_safe_factor_says(seed: int) -> None:
    mbar, v = Strengths(0.4, 0.05).mbar(learnt(Probabilistic(), models(seed=seed))), models(seed=seed + 1)
    each = float((mbar.diagonal()[:, None] * v.square()).sum())
    assert float((v * (mbar @ v)).sum()) <= safe(mbar) * each * (1 + 1e-12)


def test_tasks_that_are_not_related_need_no_safety() -> None:
    assert safe(torch.diag(torch.tensor([0.5, 2.0], dtype=torch.float64))) == 1.0


@given(
    roots=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8),
    zeros=st.integers(0, 4),
    low=st.floats(1e-4, 0.5),
    width=st.floats(0.1, 5),
    share=st.floats(0.0, 1.0),
)
def test_eigenvalues_meet_the_conditions_of_a_minimum(
    roots: list[float], zeros: int, low: float, width: float, share: float
) -> None:
    r, high, count = torch.tensor(roots, dtype=torch.float64), low + width, len(roots) + zeros
    total = count * (low + share * width)
    values, rest = spread(r, zeros, low, high, total)
    assert float(values.sum()) + zeros * rest == pytest.approx(total, rel=1e-9)
    assert float(values.min()) >= low * (1 - 1e-12)
    assert float(values.max()) <= high * (1 + 1e-12)
    free = (values > low * (1 + 1e-9)) & (values < high * (1 - 1e-9))
    taus = r / values  # one for all who are free; those at a bound would leave it
    if bool(free.any()):
        tau = float(taus[free][0])
        assert taus[free].numpy() == pytest.approx(tau, rel=1e-9)
        assert bool((taus[values >= high * (1 - 1e-9)] >= tau * (1 - 1e-9)).all())
        assert bool((taus[values <= low * (1 + 1e-9)] <= tau * (1 + 1e-9)).all())
    if rest > low * (1 + 1e-9):
        assert bool((values >= high * (1 - 1e-9)).all())


@pytest.mark.parametrize("relation", LEARNED, ids=str)
def test_models_that_are_all_zero_teach_nothing(relation: Learned) -> None:
    assert relation.learned(torch.zeros(4, 3)) is None


def test_the_start_of_a_covariance_is_the_same_for_all_tasks_with_trace_one() -> None:
    assert torch.allclose(Probabilistic().start(4), 4 * torch.eye(4, dtype=torch.float64))
    omega = Clustered(2, 0.1).start(4)
    assert torch.allclose(omega, torch.eye(4, dtype=torch.float64) * 0.11 / 0.6)


@pytest.mark.parametrize("relation", [Probabilistic(0.1), Clustered(2, 0.1)], ids=str)
def test_tasks_that_join_are_related_to_nobody_and_the_sum_of_eigenvalues_is_kept(relation: Learned) -> None:
    omega = relation.start(6)
    omega[:5, :5] = learnt(relation, models())
    covariance = relation.factor * torch.linalg.inv(relation.joined(omega, torch.arange(6), 6))
    assert float(covariance.trace()) == pytest.approx(relation.range(6)[2])
    assert covariance[5, :5].abs().max() == 0
    old = relation.factor * torch.linalg.inv(omega[:5, :5])
    assert torch.allclose(correlations(covariance)[:5, :5], correlations(old), atol=1e-9)


def test_the_mean_and_a_complete_graph_are_one_relation() -> None:
    edges = ",".join(f"{k}-{j}:0.25" for k in range(4) for j in range(k))
    assert torch.allclose(Laplacian(edges).start(4), Mean().start(4), atol=1e-15)
    w = models(4)
    assert cost(w, Mean().start(4)) == pytest.approx(float((w - w.mean(0)).square().sum()))


def test_clients_that_are_no_tasks_have_no_part_in_a_relation(tmp_path: Path) -> None:
    who = torch.tensor([0, 2, 3])
    assert torch.equal(Laplacian("0-1,0-2:0.5,2-3").among(who, 4), Laplacian("0-1:0.5,1-2").start(3))
    np.save(tmp_path / "omega.npy", np.diag([1.0, 2.0, 3.0, 4.0]))
    assert Fixed(str(tmp_path / "omega.npy")).among(who, 4).diagonal().tolist() == [1.0, 3.0, 4.0]


def test_a_newcomer_among_tasks_near_their_mean_is_held_near_that() -> None:
    w = models(4)
    a, mu = Mean().newcomer(w, torch.zeros(3, dtype=torch.float64))
    assert a == pytest.approx(4 / 5)
    assert torch.allclose(mu, w.mean(0))
    own = models(1, 3, 9)[0]
    more = torch.cat([w, own[None]])
    apart = float((more - more.mean(0)).square().sum() - (w - w.mean(0)).square().sum())
    assert apart == pytest.approx(a * float((own - mu).square().sum()))


def test_what_a_newcomer_is_asked_is_the_part_of_the_cost_that_depends_on_it() -> None:
    w, own = models(4), models(1, 3, 9)[0]
    omega = learnt(Probabilistic(), torch.cat([w, own[None]]))
    a, mu = Probabilistic().newcomer(w, own)
    for other in models(3, 3, 11):
        whole = cost(torch.cat([w, other[None]]), omega) - cost(torch.cat([w, mu[None]]), omega)
        assert whole == pytest.approx(a * float((other - mu).square().sum()), rel=1e-9)


def test_a_matrix_is_read_from_text_and_from_numpy(tmp_path: Path) -> None:
    omega = np.array([[2.0, -1.0], [-1.0, 1.0]])
    np.save(tmp_path / "omega.npy", omega)
    (tmp_path / "omega.csv").write_text("2,-1\n-1,1\n")
    for name in ("omega.npy", "omega.csv"):
        relation = Fixed(str(tmp_path / name))
        relation.check(2)
        assert relation.start(2).numpy() == pytest.approx(omega)
    grown = relation.start(3)
    assert grown[2].tolist() == [0.0, 0.0, 1.5]
    with pytest.raises(DataError, match="2 × 2, but there are 3 clients"):
        relation.check(3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1,2\n2,1\n", r"not positive semidefinite: it has the eigenvalue -1"),
        ("1,2\n3,4\n", r"not symmetric: Ω\[0, 1\] = 2, but Ω\[1, 0\] = 3"),
        ("1,2,3\n4,5,6\n", "not square but 2 × 3"),
        ("1,nan\nnan,1\n", "not finite"),
        ("a,b\n", "not square but 0"),
        ("1,x\n2,3\n", "cannot be read"),
    ],
)
def test_a_matrix_that_is_no_relation_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "omega.csv").write_text(text)
    with pytest.raises(DataError, match=says):
        Fixed(str(tmp_path / "omega.csv")).check(2)


def test_a_missing_matrix_and_a_missing_name_are_refused() -> None:
    with pytest.raises(DataError, match="is no file; give omega ="):
        Fixed("nowhere.npy").check(2)
    with pytest.raises(ConfigError, match="there is no relation 'kin'"):
        relation_for("kin")


@pytest.mark.parametrize("relation", [Mean(), Laplacian("0-1,2-3")], ids=str)
def test_models_that_cost_nothing_are_refused(relation: Relation) -> None:
    with pytest.raises(ConfigError, match="give lambda2 a value above 0"):
        Strengths(1.0, 0.0).mbar(relation.start(4))
