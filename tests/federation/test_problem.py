from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from fedloom.errors import ConfigError, DataError
from fedloom.federation.data import FederatedData
from fedloom.federation.networks import build_model
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ragged
from problems import make_data, make_problem


def with_value(data: FederatedData, client: int, split: str, value: float, part: str = "x") -> FederatedData:
    changed = getattr(data, part).clone()
    changed[int(data.splits[split][client][-1]), 0] = value
    return replace(data, **{part: changed})


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(("client", "split"), [(0, "train"), (2, "train"), (3, "test")])
def test_a_feature_that_is_not_finite_is_refused_with_its_owner(value: float, client: int, split: str) -> None:
    data = with_value(make_data(names="abcde"), client, split, value)
    row = int(data.splits[split][client][-1])
    with pytest.raises(DataError, match=rf"row {row} of 'made up' \({split} of client {'abcde'[client]}\).*not finite"):
        Problem(data, build_model("linear", data))


def test_the_owner_is_found_among_contiguous_and_empty_clients_too() -> None:
    data = make_data(sizes=(2, 0, 3), tests=(0, 0, 0))
    data = replace(data, splits={split: Ragged.contiguous(torch.tensor([2, 0, 3])) for split in ("train", "test")})
    data.x[2, 1] = torch.nan
    with pytest.raises(DataError, match=r"row 2 .*\(train of client 2\)"):
        Problem(data, build_model("linear", data))


def test_a_row_that_nobody_owns_may_hold_anything_but_does_not_hide_one_that_is_owned() -> None:
    data = make_data(sizes=(4, 4), tests=(0, 0))
    owned = Ragged.of([torch.tensor([1, 2]), torch.tensor([4, 6])])
    data = replace(data, splits={"train": owned, "test": owned})
    data.x[0] = torch.nan
    Problem(data, build_model("linear", data))
    data.x[6] = torch.inf
    with pytest.raises(DataError, match=r"row 6 .*\(train of client 1\)"):
        Problem(data, build_model("linear", data))


def test_a_number_too_large_for_the_runs_precision_is_refused() -> None:
    data = with_value(make_data(dtype=torch.float64), 1, "train", 1e300)
    Problem(data, build_model("linear", data), dtype=torch.float64)
    with pytest.raises(DataError, match="not finite"):
        Problem(data, build_model("linear", data))


@pytest.mark.parametrize("task", ["regression", "binary"])
def test_a_label_that_is_not_finite_is_refused(task: str) -> None:
    data = with_value(make_data(task=task, outputs=1), 1, "train", torch.nan, "y")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"\(train of client 1\).*not finite"):
        Problem(data, build_model("linear", data))


def test_several_labels_may_be_unknown_but_not_infinite() -> None:
    data = with_value(make_data(task="multilabel"), 1, "train", torch.nan, "y")
    problem = Problem(data, build_model("linear", data))
    y, _ = problem.client([0, 1]).sgd(problem.model.init(0), 0.1, 4)
    assert torch.isfinite(y).all()
    data = with_value(make_data(task="multilabel"), 1, "train", torch.inf, "y")
    with pytest.raises(DataError, match="not finite"):
        Problem(data, build_model("linear", data))


def test_a_single_label_of_several_may_be_unknown_too() -> None:
    data = with_value(make_data(task="multilabel", outputs=1), 1, "train", torch.nan, "y")
    problem = Problem(data, build_model("linear", data))
    y, _ = problem.client([0, 1]).sgd(problem.model.init(0), 0.1, 4)
    assert torch.isfinite(y).all()
    assert torch.isfinite(problem.client([0, 1]).grad(problem.model.init(0))).all()


def test_the_loss_must_fit_the_task() -> None:
    data = make_data()
    with pytest.raises(ConfigError, match="does not fit classification"):
        Problem(data, build_model("linear", data), "squared")


def test_rows_take_on_the_precision_of_the_run() -> None:
    problem = make_problem("linear", dtype=torch.float64)
    assert problem.x.dtype == torch.float64
    assert problem.y.dtype == torch.int64
    assert make_problem("linear", task="regression", dtype=torch.float64).y.dtype == torch.float64


def test_the_stack_follows_from_model_data_and_method_alone() -> None:
    small = make_problem("linear")
    assert small.stack_size(10) == 1024
    wide = make_problem("mlp", shape=(784,), outputs=10, options={"hidden": [100]})
    assert 5 <= wide.stack_size(32) <= 10
    assert wide.stack_size(10_000) == 1
    assert make_problem("lenet").stack_size(32) == 1
    assert wide.stack_size(None) == wide.stack_size(6)  # on average a client has 5.6 rows


@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_a_problem_in_another_process_computes_the_same_bits(model: str) -> None:
    problem = make_problem(model)
    other = pickle.loads(pickle.dumps(problem))
    theta = problem.model.init(0)
    assert torch.equal(other.client([0, 2]).sgd(theta, 0.1, 4)[0], problem.client([0, 2]).sgd(theta, 0.1, 4)[0])


def test_the_pool_and_the_limit_leave_the_problem_itself_alone() -> None:
    problem = make_problem("linear")
    assert problem.with_pool().data.clients == 6
    assert problem.limited(2).data.splits["train"].sizes.tolist() == [2, 2, 2, 2, 1]
    assert problem.data.clients == 5
    assert int(problem.data.splits["train"].sizes.sum()) == 28
