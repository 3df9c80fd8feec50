"""FedOpt's family: first steps by hand, the conventions of others, and what cannot be combined."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.methods import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedOpt, FedYogi
from fedloom.methods.fedopt import ServerOptimised
from fedloom.methods.method import Method
from fedloom.types import State
from problems import make_problem, replies_of, run, start

F64 = torch.float64
X0 = torch.tensor([1.0, 1.0], dtype=F64)
MOVES = torch.tensor([[4.0, 0.0], [0.0, -8.0]], dtype=F64)  # their mean by sizes 3 and 1 is (3, −2)


def steps(method: ServerOptimised | FedOpt, count: int = 1, moves: Tensor = MOVES) -> State:
    """The state after so many rounds with the same replies, from (1, 1)."""
    ctx = start(make_problem("linear", dtype=F64), method).context(0)
    state = method.server_init(replace(ctx, theta0=X0))
    replies = replies_of(method, [1, 4], {"dx": moves}, [3, 1])
    for t in range(count):
        state = method.server(state, replies, replace(ctx, round=t))
    return state


def close(found: Tensor, wanted: list[float]) -> None:
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=F64), rtol=1e-14, atol=1e-15)


def test_server_sgd_adds_a_part_of_the_mean_move() -> None:
    close(steps(FedOpt(server_lr=0.5))["x"], [2.5, 0.0])
    close(steps(FedOpt(server_lr=0.5, weighting="uniform"))["x"], [2.0, -1.0])


def test_momentum_sums_the_moves() -> None:
    method = FedAvgM(beta=0.5, server_lr=2.0)
    close(steps(method)["x"], [7.0, -3.0])
    close(steps(method, 2)["m"], [4.5, -3.0])
    close(steps(method, 2)["x"], [16.0, -9.0])


def test_nesterov_looks_ahead() -> None:
    method = FedAvgM(beta=0.5, nesterov=True)
    close(steps(method)["x"], [1 + 3 + 1.5, 1 - 2 - 1])
    close(steps(method, 2)["x"], [5.5 + 3 + 2.25, -2 - 2 - 1.5])


def test_a_first_step_of_adagrad_by_hand() -> None:
    state = steps(FedAdagrad(server_lr=1.0, tau=4.0))  # v = 16 + (9, 4)
    close(state["delta"], [3.0, -2.0])
    close(state["v"], [25.0, 20.0])
    close(state["x"], [1 + 3 / 9, 1 - 2 / (20**0.5 + 4)])


def test_a_first_step_of_yogi_by_hand() -> None:
    state = steps(FedYogi(server_lr=1.0, tau=1.0, beta1=0.5, beta2=0.75))  # Δ = (1.5, −1), v from 1
    close(state["delta"], [1.5, -1.0])
    close(state["v"], [1 + 0.25 * 2.25, 1.0])  # where v = Δ² it stays
    close(state["x"], [1 + 1.5 / (1.5625**0.5 + 1), 0.5])
    down = steps(FedYogi(server_lr=1.0, tau=2.0, beta1=0.5, beta2=0.75))
    close(down["v"], [4 - 0.25 * 2.25, 4 - 0.25])


def test_a_first_step_of_adam_by_hand() -> None:
    state = steps(FedAdam(server_lr=1.0, tau=1.0, beta1=0.5, beta2=0.75))
    close(state["delta"], [1.5, -1.0])
    close(state["v"], [0.75 + 0.25 * 2.25, 1.0])
    close(state["x"], [1 + 1.5 / (1.3125**0.5 + 1), 0.5])


def test_the_defaults_are_those_of_the_paper() -> None:
    for cls in (FedYogi, FedAdam):
        method = cls()
        assert (method.beta1, method.beta2, method.tau) == (0.9, 0.99, 1e-3)
        assert (method.v_start, method.squares, method.bias_correction) == (None, "momentum", None)
    assert FedAdagrad().beta1 == 0.0
    assert FedAvgM().beta == 0.9
    for adaptive in (FedAdagrad(), FedYogi(), FedAdam()):
        close(steps(adaptive, 0)["v"], [1e-6, 1e-6])
        close(steps(adaptive, 0)["delta"], [0.0, 0.0])


@pytest.mark.parametrize("cls", [FedAdagrad, FedYogi, FedAdam])
def test_v_gathers_the_squares_of_the_momentum_or_of_the_mean(cls: Any) -> None:
    momentum = steps(cls(beta1=0.5, v_start=0.0))["v"]
    mean = steps(cls(beta1=0.5, v_start=0.0, squares="mean"))["v"]
    torch.testing.assert_close(mean, 4 * momentum, rtol=1e-14, atol=0)


def test_v_can_start_anywhere() -> None:
    close(steps(FedAdam(v_start=0.0), 0)["v"], [0.0, 0.0])
    close(steps(FedYogi(v_start=0.25), 0)["v"], [0.25, 0.25])


def test_with_the_correction_the_first_step_of_adam_is_the_sign() -> None:
    method = FedAdam(server_lr=0.1, v_start=0.0, squares="mean", tau=1e-12, bias_correction="adam")
    torch.testing.assert_close(steps(method)["x"], X0 + torch.tensor([0.1, -0.1], dtype=F64), rtol=0, atol=1e-10)


def test_the_correction_follows_torch_on_one_machine() -> None:
    """Adam of torch, whose ε stands beside the corrected root of v; here it is too small to matter."""
    x = X0.clone().requires_grad_()
    adam = torch.optim.Adam([x], lr=0.01, betas=(0.9, 0.999), eps=1e-14)
    for _ in range(5):
        x.grad = torch.tensor([-3.0, 2.0], dtype=F64)
        adam.step()
    method = FedAdam(server_lr=0.01, beta2=0.999, v_start=0.0, squares="mean", tau=1e-14, bias_correction="adam")
    torch.testing.assert_close(steps(method, 5)["x"], x.detach(), rtol=0, atol=1e-12)


def test_flower_counts_one_round_ahead() -> None:
    method = FedAdam(server_lr=0.1, v_start=0.0, squares="mean", tau=1e-9, bias_correction="flower")
    lr = 0.1 * (1 - 0.99**2) ** 0.5 / (1 - 0.9**2)
    close(steps(method)["x"], [1 + lr * 0.3 / (0.09**0.5 + 1e-9), 1 - lr * 0.2 / (0.04**0.5 + 1e-9)])


def test_no_move_is_no_step() -> None:
    still = torch.zeros_like(MOVES)
    for method in (FedAvgM(), FedAdagrad(v_start=0.0), FedYogi(v_start=0.0), FedAdam(v_start=0.0), FedOpt()):
        assert steps(method, 3, still)["x"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("how", [{"batch": 4}, {"batch": None, "steps": 3}, {"batch": 4, "weighting": "uniform"}])
def test_server_sgd_with_a_step_size_of_one_is_fedavg_bit_by_bit(dtype: torch.dtype, how: dict[str, Any]) -> None:
    problem = make_problem("mlp", dtype=dtype)
    one, other = run(problem, FedOpt(server_lr=1.0, **how), 4), run(problem, FedAvg(**how), 4)
    assert torch.equal(one.state["x"], other.state["x"])
    assert one.state.keys() == {"x"}


@pytest.mark.parametrize(
    ("name", "method"),
    [("momentum", FedAvgM), ("adagrad", FedAdagrad), ("yogi", FedYogi), ("adam", FedAdam)],
)
def test_what_fedopt_leaves_open_is_as_in_the_method_of_that_name(name: Any, method: type[ServerOptimised]) -> None:
    own: dict[str, Any] = {"lr": 0.05, "batch": None, "steps": 2, "optimiser": "momentum", "weighting": "uniform"}
    problem = make_problem("linear", dtype=F64)
    one, other = (run(problem, m, 5).state["x"] for m in (FedOpt(server_optimiser=name, **own), method(**own)))
    assert torch.equal(one, other)


def test_fedopt_refuses_what_its_optimiser_does_not_have() -> None:
    with pytest.raises(ConfigError, match="the server optimiser 'adagrad' has no beta2; leave it out"):
        run(make_problem("linear"), FedOpt(server_optimiser="adagrad", beta2=0.9), 1)


@pytest.mark.parametrize("method", [FedOpt(batch=4, server_optimiser="yogi"), FedAvgM(batch=4), FedAdam(batch=4)])
def test_a_round_without_replies_leaves_the_server_as_it_was(method: Method) -> None:
    from fedloom.engine.fleet import Fleet

    engine = start(make_problem("linear"), method, fleet=Fleet(loss=1.0))
    before = engine.state
    engine.step()
    assert engine.state is before
