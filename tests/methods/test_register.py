from __future__ import annotations

import dataclasses

import pytest

from fedloom.errors import ConfigError
from fedloom.federation.optimisers import Adam, Momentum, local_optimiser
from fedloom.methods import REGISTER, FedAvg, lookup, register
from fedloom.methods.method import Method, check_parameters


def test_the_register_says_what_a_newcomer_wants_to_know() -> None:
    assert {"fedavg", "fedsgd", "local", "central"} <= set(REGISTER)
    for name, entry in REGISTER.items():
        assert entry.name == name
        assert entry.family
        assert entry.paper
        assert entry.summary
        assert issubclass(entry.cls, Method)


def test_a_method_that_does_not_exist_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no method 'fedagv'; did you mean 'fedavg'\?"):
        lookup("fedagv")
    with pytest.raises(ConfigError, match="no method 'xyz'; choose one of fedavg, fedsgd, admm, ") as refused:
        lookup("xyz")
    assert str(refused.value).endswith(f"; choose one of {', '.join(REGISTER)}, or your own as module:Class")
    assert lookup("fedavg").cls is FedAvg


def test_users_add_their_own() -> None:
    register("mine", FedAvg, family="averaging", summary="my own")
    try:
        assert lookup("mine").summary == "my own"
    finally:
        REGISTER.remove("mine")


@pytest.mark.parametrize("name", REGISTER)
def test_methods_are_frozen_data_with_defaults(name: str) -> None:
    method = REGISTER[name].cls()
    assert dataclasses.is_dataclass(method)
    for field in dataclasses.fields(method):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field.name, 1)
    assert dataclasses.replace(method) == method


def test_a_method_remembers_only_if_it_says_so() -> None:
    assert REGISTER["local"].cls().remembers
    assert not REGISTER["fedavg"].cls().remembers


def test_the_batch_decides_how_many_clients_are_computed_together() -> None:
    assert FedAvg(batch=7).local_batch == 7
    assert FedAvg(batch=None).local_batch is None
    assert REGISTER["fedsgd"].cls().local_batch is None


def test_local_optimisers_have_names() -> None:
    assert local_optimiser("sgd") is None
    assert local_optimiser("momentum") == Momentum(0.9)
    assert local_optimiser("adam") == Adam(0.9, 0.999, 1e-8)
    with pytest.raises(ConfigError, match="no optimiser 'lion'; choose one of sgd, momentum, adam"):
        local_optimiser("lion")


def test_momentum_is_told_its_beta() -> None:
    assert local_optimiser("momentum:0.5") == Momentum(0.5)
    check_parameters(FedAvg(optimiser="momentum:0.5"))
    for beta in ("1", "-0.1", "much", ""):
        with pytest.raises(ConfigError, match="should be a number from 0 to below 1"):
            check_parameters(FedAvg(optimiser=f"momentum:{beta}"))
    with pytest.raises(ConfigError, match="optimiser = 'lion' cannot be"):
        check_parameters(FedAvg(optimiser="lion"))
