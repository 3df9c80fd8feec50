"""Published personal layers: what travels, what the server keeps, and what clients make of others' layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import fedloom
from fedloom.errors import ConfigError
from fedloom.federation.layers import Parts
from fedloom.federation.metric import Predictions, together
from fedloom.methods import FedAdam, FedAvg, FedMetaSGD, FedPer, FedRep
from fedloom.methods.personal import Personal
from problems import make_problem, run

CLIENTS, NEW = 6, 2


@pytest.fixture(scope="module")
def problem() -> fedloom.Problem:
    """Four clients that train, two that never do."""
    data = fedloom.federate("digits", clients=CLIENTS, partition="classes", classes_per_client=3, target=NEW / CLIENTS)
    return fedloom.Problem(data, fedloom.build_model("mlp", data, hidden=[8]))


def trained(problem: fedloom.Problem, method: Any, *evaluations: fedloom.Evaluation) -> fedloom.Run:
    return fedloom.train(problem, method, rounds=3, evaluate=[fedloom.Evaluation(), *evaluations], progress=False)


def asked(parts: Any, **more: Any) -> fedloom.Evaluation:
    return fedloom.Evaluation(parts, parts=parts, **{"model": "personal", "on": "target", **more})


def values(found: fedloom.Run, name: str, metric: str = "accuracy") -> float:
    return found.history[-1]["evaluations"][name][metric]["weighted"]


def new_clients(problem: fedloom.Problem) -> list[int]:
    return problem.data.with_role(1).tolist()


def models(problem: fedloom.Problem, found: fedloom.Run) -> torch.Tensor:
    """Each published head on the shared body."""
    parts, state = Parts.of(problem.model.slices, "head"), found.state
    heads = state["published"][state["published turns"] > 0]
    return parts.joined(state["x"], heads)


def outputs(problem: fedloom.Problem, theta: torch.Tensor, client: int, split: str) -> tuple[torch.Tensor, ...]:
    rows = problem.data.splits[split][client]
    return problem.model(theta, problem.x[rows]), problem.y[rows]


# What travels


@pytest.mark.parametrize("inner", [FedAvg(lr=0.2), FedAdam(), FedMetaSGD()], ids=lambda inner: type(inner).__name__)
def test_publishing_changes_nothing_but_what_is_sent_and_that_is_the_personal_part(inner: Any) -> None:
    problem = make_problem("mlp", sizes=(7, 3, 12, 5, 2))
    secret, told = (run(problem, Personal(inner, publish=publish), 3, evaluations=()) for publish in (False, True))
    assert all(torch.equal(secret.state[key], told.state[key]) for key in secret.state)
    memories = [engine.store.gather(torch.arange(5))[0] for engine in (secret, told)]
    assert all(torch.equal(memories[0][key], memories[1][key]) for key in memories[0])
    assert torch.equal(told.state["published"], memories[1]["own x"])
    own = memories[1]["own x"][0].numel()
    assert 4 * own <= (told.clocks.bytes_up - secret.clocks.bytes_up) / 15 <= 4 * own + 120  # its name and a header
    assert told.clocks.bytes_down == secret.clocks.bytes_down


def test_parts_of_clients_that_join_have_room() -> None:
    method, problem = FedPer(publish=True), make_problem("mlp")
    assert method.per_client == ("published", "published turns")
    assert FedPer().per_client == ()
    assert len(run(problem, method, 1, evaluations=()).state["published"]) == problem.data.clients


# What is made of it


def test_new_clients_use_the_average_the_best_all_or_the_majority(problem: fedloom.Problem) -> None:
    names = ("average", "best", "ensemble", "vote")
    found = trained(problem, FedPer(lr=0.2, publish=True), *(asked(name) for name in names))
    several, mean = models(problem, found), models(problem, found).mean(0)
    right, rows = dict.fromkeys(names, 0), 0
    for client in new_clients(problem):
        out, y = outputs(problem, mean, client, "test")
        right["average"] += int((out.argmax(-1) == y).sum())
        support = [problem.loss.rows(*outputs(problem, one, client, "support")).mean() for one in several]
        out, _ = outputs(problem, several[torch.stack(support).argmin()], client, "test")
        right["best"] += int((out.argmax(-1) == y).sum())
        each = torch.stack([outputs(problem, one, client, "test")[0] for one in several])
        right["ensemble"] += int((each.softmax(-1).mean(0).argmax(-1) == y).sum())
        votes = torch.nn.functional.one_hot(each.argmax(-1), each.shape[-1]).sum(0)
        right["vote"] += int((votes.argmax(-1) == y).sum())
        rows += len(y)
    for name in names:
        assert values(found, name) == pytest.approx(right[name] / rows), name
    assert len(set(right.values())) > 2  # they are not the same


def test_known_clients_may_be_evaluated_with_the_averaged_part_too(problem: fedloom.Problem) -> None:
    found = trained(problem, FedPer(lr=0.2, publish=True), asked("own", on="source"), asked("average", on="source"))
    mean, right, rows = models(problem, found).mean(0), 0, 0
    for client in problem.data.with_role(0).tolist():
        out, y = outputs(problem, mean, client, "test")
        right, rows = right + int((out.argmax(-1) == y).sum()), rows + len(y)
    assert values(found, "average") == pytest.approx(right / rows)
    assert values(found, "own") > values(found, "average")


def test_a_new_client_adapts_what_it_was_lent(problem: fedloom.Problem) -> None:
    how = {"model": "adapted", "adapt_lr": 0.5, "adapt_steps": 2}
    found = trained(problem, FedRep(lr=0.2, head_epochs=1, publish=True), asked("average", **how), asked("best", **how))
    mean, parts = models(problem, found).mean(0), Parts.of(problem.model.slices, "head").where(True)
    right, rows = 0, 0
    for client in new_clients(problem):
        theta = mean.clone()
        for _ in range(2):
            theta = theta - 0.5 * problem.client(client).grad(theta, "support") * parts
        out, y = outputs(problem, theta, client, "query")
        right, rows = right + int((out.argmax(-1) == y).sum()), rows + len(y)
    assert values(found, "average") == pytest.approx(right / rows)


@pytest.mark.parametrize("task", ["classification", "binary", "multilabel", "regression"])
@pytest.mark.parametrize("vote", [False, True])
def test_equal_models_say_together_what_each_says(task: Any, vote: bool) -> None:
    out = torch.randn(5, 3 if task in ("classification", "multilabel") else 1, dtype=torch.float64)
    y = torch.zeros(5, dtype=torch.int64) if task == "classification" else torch.zeros_like(out)
    one = Predictions(out, y, torch.zeros(5, dtype=torch.int64), torch.tensor([5]), task)
    found = together([one, one, one], vote)
    if task == "regression":
        assert torch.allclose(found.out, out)
    else:
        assert torch.equal(found.labels(), one.labels())
        said = one.probabilities() if not vote else found.probabilities().round()
        assert torch.allclose(found.probabilities(), said, atol=1e-9)


def test_the_majority_wins_against_one_that_is_sure() -> None:
    out = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-20.0, 20.0]], dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.int64)
    each = [Predictions(row[None], zero, zero, torch.tensor([1]), "classification") for row in out]
    assert together(each, vote=True).labels().tolist() == [0]
    assert together(each, vote=False).labels().tolist() == [1]  # 0.27, 0.27, 1 against 0.73, 0.73, 0
    assert together(each, vote=True).probabilities()[0, 0] == pytest.approx(2 / 3)
    assert together(each, vote=False).probabilities()[0, 1] == pytest.approx((2 * 0.2689414 + 1) / 3)
    margins = [
        replace(one, out=row[None, :1], y=torch.zeros(1, 1), task="binary", link="margin")
        for one, row in zip(each, out, strict=True)
    ]
    assert together(margins, vote=True).out.item() == pytest.approx(2 / 3 - 1 / 3)
    assert together(margins, vote=False).out.item() == pytest.approx(-6.0)


# Refusals, and what is said


@pytest.mark.parametrize(
    ("method", "evaluation", "said"),
    [
        (FedPer(), asked("best"), "parts = 'best', but no client publishes its personal layers; set publish = true"),
        (FedAvg(), asked("average"), "no client publishes"),
        (FedPer(publish=True), asked("vote", model="global"), "the server's model has no client's personal layers"),
    ],
)
def test_parts_that_nobody_has_are_refused(problem: Any, method: Any, evaluation: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        trained(problem, method, evaluation)


def test_it_is_said_what_clients_use_that_never_took_part(problem: fedloom.Problem) -> None:
    said = "never took part and use personal layers that nobody has trained, each a draw of its own (with publish"
    (note,) = trained(problem, FedPer(), asked("own")).notes
    assert note.startswith(f"own: 2 of the 2 clients {said}")
    (note,) = trained(problem, FedPer(start="common", publish=True), asked("own"), asked("best")).notes
    assert "each the one that all begin with (parts = 'best' or 'average'" in note
    sampled = fedloom.train(problem, fedloom.Ditto(), rounds=1, select=1, progress=False)
    assert sampled.notes == [
        "evaluation: 3 of the 4 clients never took part and use the model that they would begin with"
    ]
    assert trained(problem, FedAvg(), asked("own")).notes == []


def test_a_new_client_is_adapted_from_layers_that_others_published(problem: fedloom.Problem) -> None:
    method, client = FedPer(lr=0.2, publish=True), new_clients(problem)[0]
    found = trained(problem, method)
    how: dict[str, Any] = {"problem": problem, "method": method, "lr": 0.1}
    mean = models(problem, found).mean(0)
    adapted = fedloom.adapt(found, client, parts="average", **how)
    right = mean - 0.1 * problem.client(client).grad(mean, "support")
    assert torch.allclose(adapted.theta, right, atol=1e-6)
    assert "notes" not in adapted.record
    (note,) = fedloom.adapt(found, client, **how).record["notes"]
    assert "never took part: such clients use personal layers that nobody has trained" in note
    with pytest.raises(ConfigError, match="adapting makes one; choose 'best' or 'average'"):
        fedloom.adapt(found, client, parts="vote", **how)
    with pytest.raises(ConfigError, match="no client publishes"):
        fedloom.adapt(found, client, parts="best", problem=problem, method=FedPer())


def test_numbers_are_not_voted_on() -> None:
    data = fedloom.federate("diabetes", clients=4, target=0.25)
    problem = fedloom.Problem(data, fedloom.build_model("mlp", data, hidden=[4]))
    with pytest.raises(ConfigError, match="numbers cannot be voted on"):
        trained(problem, FedPer(publish=True), asked("vote"))
    assert trained(problem, FedPer(lr=0.01, publish=True), asked("ensemble")).summary["rounds"] == 3
