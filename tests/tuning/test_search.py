"""Spaces beside hyper-parameters, and what samplers take from them."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedloom
from fedloom.errors import ConfigError
from fedloom.experiment.sections import method_form
from fedloom.methods import REGISTER
from fedloom.search import Search, search_of
from fedloom.tuning.samplers import check_sampler, points
from fedloom.tuning.spaces import declared, known_keys, parse_space, read_space, space_for
from wrappers import Counting


@dataclass(frozen=True)
class Mine(fedloom.FedAvg):
    """A user's own method."""

    beta: Annotated[float, Search(0.5, 2.0)] = 1.0


@pytest.mark.parametrize("name", [name for name in REGISTER if name != "personal"])  # it has those of what it wraps
def test_every_method_has_something_to_tune_and_its_form_takes_both_ends(name: str) -> None:
    form = method_form(name)
    spaces = {key: found for key, field in form.fields.items() if (found := search_of(field.annotation)) is not None}
    assert spaces
    for key, space in spaces.items():
        space.check(key)
        for value in space.ends:
            assert form.read({key: value})[1] == {}
        default = form.fields[key].default
        assert default is None or space.low <= default <= space.high


def test_a_users_own_method_and_a_wrapped_one_are_tuned_by_the_same_annotation() -> None:
    assert declared(Mine())["method.beta"] == Search(0.5, 2.0)
    assert set(declared(Counting(inner=fedloom.FedProx()))) >= {"method.inner.lr", "method.inner.mu"}
    assert "method.inner.lr" in declared(fedloom.Personal())


@given(
    st.floats(1e-6, 1e3), st.floats(1.0001, 1e4), st.booleans(), st.floats(0, 1, exclude_max=True), st.integers(1, 9)
)
def test_values_are_inside_the_range_and_are_what_a_text_can_say(
    low: float, ratio: float, log: bool, share: float, count: int
) -> None:
    search = Search(low, low * ratio, log)
    search.check("x")
    assert low <= search.at(share) <= low * ratio
    assert all(low <= value <= low * ratio for value in search.spaced(count))
    assert parse_space(f"method.lr={search}") == ("method.lr", search)


@given(st.integers(1, 50), st.integers(1, 50), st.booleans(), st.floats(0, 1, exclude_max=True))
def test_two_whole_numbers_mean_whole_numbers(low: int, more: int, log: bool, share: float) -> None:
    value = Search(low, low + more, log).at(share)
    assert isinstance(value, int)
    assert low <= value <= low + more


def test_each_power_of_ten_is_as_likely_as_any_other() -> None:
    assert Search(0.001, 1.0, log=True).at(1 / 3) == 0.01
    assert Search(0.0, 1.0).at(0.25) == 0.25
    assert Search(choices=("a", "b")).at(0.6) == "b"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("method.lr", "write a range as"),
        ("method.lr=1..0.1", "the range is empty: 1 is not below 0.1"),
        ("method.lr=1..1", "is empty"),
        ("method.lr=0..1:log", "begins above 0"),
        ("method.lr=a..b", "between two numbers"),
        ("method.lr=0.1,0.1", "twice"),
        ("method.lr=", "write a range as"),
    ],
)
def test_a_space_that_cannot_be_says_why(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_space(text)


def test_python_says_spaces_as_tuples_lists_and_texts() -> None:
    found = read_space({"a.b": (1, 5), "a.c": (0.1, 1, "log"), "a.d": ["x", None], "a.e": "1,2", "a.f": Search(0, 1)})
    assert [str(one) for one in found.values()] == ["1..5", "0.1..1:log", "x,none", "1,2", "0..1"]
    with pytest.raises(ConfigError, match=r"space: method.lr = 3 is no space"):
        read_space({"method.lr": 3})


def test_what_the_user_gave_stays_and_what_he_says_of_the_space_wins() -> None:
    space = space_for(fedloom.FedProx(), {"method.lr": Search(1, 2), "model.hidden": Search(1, 9)}, ["method.mu"])
    assert {key: str(one) for key, one in space.items()} == {"method.lr": "1..2", "model.hidden": "1..9"}
    assert "method.epochs" in known_keys(fedloom.FedProx())


@pytest.mark.parametrize("name", ["sobol", "random", "grid"])
def test_points_are_the_same_whenever_they_are_asked_for_and_all_differ(name: str) -> None:
    space = {"method.lr": Search(0.001, 1.0, log=True), "method.epochs": Search(choices=(1, 2, 5))}
    default: dict[str, Any] = {"method.lr": 0.1, "method.epochs": 1}
    found = points(name, space, default, 12, 3, "fedavg")
    assert found == points(name, space, default, 12, 3, "fedavg")
    assert 10 <= len(found) <= 12
    assert default not in found
    assert len({tuple(one.values()) for one in found}) == len(found)
    if name != "grid":
        assert found[:5] == points(name, space, default, 5, 3, "fedavg")
        assert found != points(name, space, default, 12, 3, "fedprox")


def test_a_small_space_has_no_more_trials_than_points() -> None:
    space = {"method.epochs": Search(choices=(1, 2, 5))}
    assert points("random", space, {"method.epochs": 1}, 9, 0, "x") == [{"method.epochs": 2}, {"method.epochs": 5}] or (
        points("random", space, {"method.epochs": 1}, 9, 0, "x") == [{"method.epochs": 5}, {"method.epochs": 2}]
    )
    assert len(points("grid", {"a": Search(choices=tuple(range(30)))}, {}, 7, 0, "x")) == 7


def test_without_optuna_its_samplers_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "optuna":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'fedloom\[tune\]'"):
        check_sampler("tpe")
    with pytest.raises(ConfigError, match="no sampler 'sobl'; did you mean 'sobol'"):
        check_sampler("sobl")
