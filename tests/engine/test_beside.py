"""The server's model beside the clients' own, in the summary: its values on the same rows, or why there is none."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import fedloom
from fedloom.engine import beside
from fedloom.methods import method_of


@cache
def problem() -> fedloom.Problem:
    data = fedloom.federate("digits", clients=6, partition="dirichlet", alpha=0.3, seed=1)
    return fedloom.Problem(data, fedloom.build_model("linear", data))


def summary(method: str, **how: Any) -> dict[str, Any]:
    return fedloom.train(problem(), method, rounds=2, seed=3, executor="serial", **how).summary


def test_dittos_global_model_is_fedavgs_client_by_client() -> None:
    ditto, fedavg = summary("ditto"), summary("fedavg")
    assert ditto["global"] == {"spread": fedavg["spread"], "per_client": fedavg["per_client"]}
    assert ditto["per_client"]["accuracy"] != fedavg["per_client"]["accuracy"]
    assert "global" not in fedavg


def test_an_adapted_model_stands_beside_the_one_before_adaptation_on_the_same_rows() -> None:
    found = summary("fedavg-meta")
    before = summary("fedavg-meta", evaluate=fedloom.Evaluation(model="global", split="test-query"))
    assert found["judged"]["split"] == "test-query"
    assert found["global"]["per_client"] == before["per_client"]
    assert "global" not in before


def test_a_user_who_adapts_fedavgs_model_sees_what_that_gains() -> None:
    adapted = summary("fedavg", evaluate=fedloom.Evaluation(model="adapted", split="test", adapt_split="train"))
    assert adapted["global"]["per_client"] == summary("fedavg")["per_client"]
    assert "global" not in summary("fedavg", evaluate=fedloom.Evaluation(model="personal"))  # the same model twice
    assert "global" not in summary("ditto", evaluate=[])


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("local", "the initial model"),
        ("l2gd", "the mean of the clients' models"),
        ("fedu", "the mean of the clients' models"),
        ("mixture-admm", "the mean of the clients' models"),
        ("clustered", "the model of the largest group"),
        ("fedper", "the shared layers with the personal ones as they began"),
        ("fedper-maml", "the shared layers with the personal ones as they began"),
    ],
)
def test_what_stands_in_for_a_model_of_all_is_named(method: str, words: str) -> None:
    assert method_of(method).stand_in == words
    if method in ("l2gd", "fedper"):
        assert summary(method)["global"] == {"stand_in": words}


def test_values_of_very_many_clients_are_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_PER_CLIENT_MOST", 5)
    found = summary("ditto")
    assert "per_client" not in found
    assert set(found["global"]) == {"spread"}
    assert found["global"]["spread"]["accuracy"]["clients"] == 6
