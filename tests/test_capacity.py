"""Sizes are refused before they are allocated."""

from __future__ import annotations

import numpy as np
import pytest

import fedloom
from fedloom.capacity import ALLOWED, memory, refuse_larger
from fedloom.errors import ConfigError, DataError


def test_the_error_says_what_is_needed_and_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "24000000000")
    machine = min(24 * 10**9, memory())
    with pytest.raises(DataError, match=r"x\.npz: this needs about 74 GB; the machine has .*B\. Give less"):
        refuse_larger(74 * 10**9, "x.npz", "Give less", DataError)
    refuse_larger(machine, "x.npz", "Give less", DataError)


def test_a_user_may_allow_less_than_there_is_and_not_more(monkeypatch: pytest.MonkeyPatch) -> None:
    there = memory()
    monkeypatch.setenv(ALLOWED, "1000")
    assert memory() == 1000
    monkeypatch.setenv(ALLOWED, str(there * 10))
    assert memory() == there


@pytest.mark.parametrize(
    ("name", "options"),
    [("mlp", {"hidden": [10**9]}), ("mlp", {"hidden": [10**7, 10**7]}), ("mlp", {"hidden": [2**62, 2**62]})],
)
def test_a_model_that_no_machine_holds_is_refused(name: str, options: dict[str, object]) -> None:
    data = fedloom.federate("digits", clients=5)
    with pytest.raises(ConfigError, match=r"this needs about|cannot be built"):
        fedloom.build_model(name, data, **options)


def test_looking_at_the_size_of_a_model_does_not_change_its_first_weights() -> None:
    data = fedloom.federate("digits", clients=5)
    model = fedloom.build_model("mlp", data, hidden=[7])
    assert model.n == 64 * 7 + 7 + 7 * 10 + 10
    direct = fedloom.Model(model.build)
    assert np.array_equal(model.init(3), direct.init(3))


@pytest.mark.parametrize("name", ["lenet", "cnn", "lstm", "linear", "mlp"])
def test_every_shipped_network_can_be_looked_at_without_its_numbers(name: str) -> None:
    shape = (24, 5) if name == "lstm" else (3, 32, 32)
    x = np.zeros((6, *shape), dtype=np.float32)
    data = fedloom.federate(fedloom.from_arrays(x, np.arange(6) % 2), clients=2)
    assert fedloom.build_model(name, data).n > 0


@pytest.mark.parametrize("options", [{"clients": 10**12}, {"clients": 10, "dimension": 10**9}])
def test_data_that_no_machine_holds_are_not_made(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"quadratics of .*this needs about .*the machine has"):
        fedloom.load("quadratics", **options)
    with pytest.raises(ConfigError, match="synthetic data of 1,000,000,000,000 clients: this needs about"):
        fedloom.load("synthetic", clients=10**12)
