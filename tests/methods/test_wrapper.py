"""A method around another one answers as the method inside, in all that the contract has."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pytest

from fedloom.methods import FedAvg, ServerMethod
from fedloom.methods.wrapper import Wrapper

CONTRACT = [name for name in dir(ServerMethod) if not name.startswith("_")]
PROPERTIES = [name for name in CONTRACT if isinstance(inspect.getattr_static(ServerMethod, name), property)]
FUNCTIONS = sorted(set(CONTRACT).difference(PROPERTIES))


@dataclass(frozen=True)
class Bare(Wrapper):
    """Changes nothing."""

    inner: ServerMethod


@dataclass(frozen=True)
class OtherClient(Wrapper):
    """Changes what clients do."""

    inner: ServerMethod

    def client(self, client: Any, received: Any, memory: Any) -> Any:
        return "its own", memory


def spoken() -> ServerMethod:
    """A method whose every answer is the name of what was asked, and of a function also what it was given."""
    answers: dict[str, Any] = {name: property(lambda self, name=name: name) for name in PROPERTIES}
    answers |= {name: lambda self, *given, name=name: (name, given) for name in FUNCTIONS}
    method: ServerMethod = type("Spoken", (ServerMethod,), answers)()
    return method


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_wrapper_says_what_the_method_inside_says(name: str) -> None:
    assert getattr(Bare(spoken()), name) == name
    assert getattr(Bare(Bare(spoken())), name) == name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrapper_does_what_the_method_inside_does(name: str) -> None:
    given = tuple(range(len(inspect.signature(getattr(ServerMethod, name)).parameters) - 1))
    told = "client" if name == "turn" else name
    assert getattr(Bare(spoken()), name)(*given) == (told, given)
    assert getattr(Bare, name)(Bare(spoken()), *given) == (told, given)


def test_a_wrapper_takes_the_turn_by_its_own_client() -> None:
    assert OtherClient(FedAvg()).turn(None, {}, {}) == ("its own", {})


def test_a_wrapper_has_the_hyper_parameters_of_the_method_inside() -> None:
    assert Bare(FedAvg(lr=0.3)).lr == 0.3
    with pytest.raises(AttributeError, match="mu"):
        _ = Bare(FedAvg()).mu
