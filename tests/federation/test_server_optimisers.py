"""Optimisers of a server: they treat every number alike and by itself, leave what they are given, and have names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.server_optimisers import SGD, Adagrad, Adam, Momentum, ServerChoice, ServerOptimiser, Yogi
from fedloom.types import State

decays = st.floats(0, 0.999)
adaptive: dict[str, Any] = {
    "beta1": decays,
    "tau": st.floats(1e-6, 10),
    "v_start": st.none() | st.floats(0, 10),
    "squares": st.sampled_from(["momentum", "mean"]),
}
fading = {**adaptive, "beta2": decays, "bias_correction": st.sampled_from([None, "adam", "flower"])}
optimisers: st.SearchStrategy[ServerOptimiser] = st.one_of(
    st.just(SGD()),
    st.builds(Momentum, decays, st.booleans()),
    st.builds(Adagrad, **adaptive),
    st.builds(Yogi, **fading),
    st.builds(Adam, **fading),
)
rates = st.floats(1e-3, 10)
dtypes = st.sampled_from([torch.float32, torch.float64])


@st.composite
def courses(draw: Callable[[Any], Any]) -> tuple[Tensor, Tensor]:
    """A start for each of some servers, shape (servers, n), and their moves in each round, (rounds, servers, n)."""
    servers, n, rounds, dtype = (draw(s) for s in (st.integers(1, 4), st.integers(1, 40), st.integers(0, 4), dtypes))
    seed, scale = draw(st.integers(0, 2**32)), draw(st.sampled_from([1e-6, 1.0, 1e3]))
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(rounds + 1, servers, n, generator=generator, dtype=dtype) * scale
    noise[torch.rand(noise.shape, generator=generator) < 0.2] = 0.0
    return noise[0], noise[1:]


def walked(optimiser: ServerOptimiser, x: Tensor, moves: Tensor, lr: float) -> State:
    """The state after these moves."""
    state = optimiser.init(x)
    for move in moves:
        state = optimiser.step(state, move, lr)
    return state


def same(one: State, other: State) -> bool:
    """Whether two states agree in every bit, and in the types and shapes of their entries."""
    return one.keys() == other.keys() and all(
        one[key].dtype == other[key].dtype and torch.equal(one[key], other[key]) for key in one
    )


@given(optimisers, courses(), rates, st.data())
def test_a_part_of_the_coordinates_steps_as_within_the_whole(
    optimiser: ServerOptimiser, course: tuple[Tensor, Tensor], lr: float, data: st.DataObject
) -> None:
    x, moves = course[0][0], course[1][:, 0]
    part = torch.tensor(data.draw(st.lists(st.sampled_from(range(len(x))), min_size=1, unique=True)))
    whole = walked(optimiser, x, moves, lr)
    cut = {key: value if key == "t" else value[part] for key, value in whole.items()}
    assert same(walked(optimiser, x[part], moves[:, part], lr), cut)


@given(optimisers, courses(), rates)
def test_a_stack_steps_as_each_of_its_states_alone(
    optimiser: ServerOptimiser, course: tuple[Tensor, Tensor], lr: float
) -> None:
    x, moves = course
    alone = [walked(optimiser, x[i], moves[:, i], lr) for i in range(len(x))]
    stacked = {key: torch.stack([state[key] for state in alone]) for key in alone[0]}
    assert same(walked(optimiser, x, moves, lr), stacked)


@given(optimisers, courses(), rates)
def test_states_of_different_ages_can_be_stacked(
    optimiser: ServerOptimiser, course: tuple[Tensor, Tensor], lr: float
) -> None:
    x, moves = course
    alone = [walked(optimiser, x[i], moves[:i, i], lr) for i in range(len(x))]
    stacked = {key: torch.stack([state[key] for state in alone]) for key in alone[0]}
    after = [optimiser.step(state, x[i], lr) for i, state in enumerate(alone)]
    assert same(optimiser.step(stacked, x, lr), {key: torch.stack([state[key] for state in after]) for key in stacked})


@given(optimisers, courses(), rates)
def test_a_step_changes_nothing_that_it_is_given(
    optimiser: ServerOptimiser, course: tuple[Tensor, Tensor], lr: float
) -> None:
    state = walked(optimiser, *course, lr)
    kept, move = {key: value.clone() for key, value in state.items()}, course[0].clone()
    optimiser.step(state, course[0], lr)
    assert same(state, kept)
    assert torch.equal(course[0], move)


def test_an_optimiser_is_chosen_by_name_with_what_is_given() -> None:
    adam = ServerChoice("adam", beta1=0.5, beta2=0.9, tau=0.1, v_start=0.0, squares="mean", bias_correction="adam")
    assert adam.server_opt() == Adam(0.5, 0.1, 0.0, "mean", 0.9, "adam")
    assert replace(adam, server_optimiser="yogi").server_opt() == Yogi(0.5, 0.1, 0.0, "mean", 0.9, "adam")
    assert ServerChoice("momentum", nesterov=True).server_opt() == Momentum(nesterov=True)
    assert ServerChoice("adagrad").server_opt() == Adagrad()
    assert ServerChoice().server_opt() == SGD()


def test_what_the_chosen_optimiser_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="the server optimiser 'sgd' has no beta; leave it out"):
        ServerChoice(beta=0.9).server_opt()
