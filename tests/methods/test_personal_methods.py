"""Methods with a model for each client: one problem and its solvers, what is refused, and what travels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fedloom
from fedloom.conformance import DECLARATIONS, check_method, quadratics
from fedloom.conformance.declarations.personal import mixture
from fedloom.conformance.drive import product, stepped, walking
from fedloom.engine.fleet import Distribution
from fedloom.engine.rounds import Rounds
from fedloom.errors import ConfigError, RunError
from fedloom.federation.problem import fresh_model
from fedloom.federation.randomness import Draw
from fedloom.methods.l2gd import runs

KNOWN = quadratics(unequal=True)
EXACT = {"solver": "exact", "local_rounds": 1}


def trained(method, rounds, **how):
    """A run of so many rounds on the quadratics."""
    return fedloom.train(KNOWN.problem, method, rounds=rounds, evaluate=[], **how)


def models_of(method, rounds):
    """Each client's own model after them."""
    with walking(Rounds, KNOWN.problem, method) as walk:
        return product(stepped(walk, rounds), KNOWN.clients)


def test_two_methods_solve_one_problem():
    strength = 0.4
    springs = models_of(fedloom.EASGD(lr=0.4, tau=1, batch=None, rho=strength), 300)
    envelopes = models_of(fedloom.PFedMe(lambda_=strength, lr=1.0, **EXACT), 300)
    torch.testing.assert_close(springs, mixture(KNOWN, strength), rtol=0, atol=1e-10)
    torch.testing.assert_close(envelopes, springs, rtol=0, atol=1e-10)


def test_l2gd_comes_nearer_with_smaller_steps():
    there = mixture(KNOWN, 0.5)
    far, near = (
        float((models_of(fedloom.L2GD(lambda_=0.5, p=0.4, lr=lr), rounds) - there).abs().max())
        for lr, rounds in ((0.3, 100), (0.01, 600))
    )
    assert near < far / 10


@pytest.mark.parametrize("p", [0.1, 0.4, 0.7])
def test_the_coin_lands_as_often_as_it_should(p):
    """Iterations between two communications: 1/(p(1 − p)) on average, so that of T iterations p(1 − p)T communicate."""
    tossed = np.array([runs(Draw(3, t), p) for t in range(4000)])
    assert tossed.min() == 1
    mean, error = tossed.mean(0), tossed.std(0) / np.sqrt(len(tossed))
    assert np.all(np.abs(mean - [1 / (1 - p), 1 / p]) < 4 * error)
    assert len(tossed) / tossed.sum() == pytest.approx(p * (1 - p), rel=0.05)


def test_a_round_of_l2gd_is_one_communication_and_the_history_tells_the_iterations():
    run = trained(fedloom.L2GD(lambda_=0.5, p=0.3, lr=0.1), 40)
    assert len(set(np.diff([row["bytes_up"] for row in run.history]).tolist())) == 1  # each round costs the same …
    assert int(run.state["iterations"]) == sum(sum(runs(Draw(0, t), 0.3)) for t in range(40))  # … whatever it does
    assert int(run.state["iterations"]) > 100


def test_the_curvature_is_found_and_p_follows_from_it():
    run = trained(fedloom.L2GD(lambda_=0.5), 3)
    greatest = float(torch.linalg.eigvalsh(KNOWN.hessians).max())
    assert float(run.state["L"]) == pytest.approx(greatest, rel=1e-3)
    p, alpha = fedloom.L2GD(lambda_=0.5).steps_at(run.state)
    assert p == pytest.approx(0.5 / (greatest + 0.5), rel=1e-3)
    assert alpha == pytest.approx(1 / (2 * (greatest + 0.5)), rel=1e-3)


def test_l2gd_says_when_its_own_p_would_make_rounds_endless() -> None:
    with pytest.raises(
        RunError, match=r"l2gd: with p = .* local steps; give a p of at least 1e-05, or, where p follows"
    ):
        trained(fedloom.L2GD(lambda_=1e-7), 2)


def test_the_curvature_is_measured_once():
    client = KNOWN.problem.client(np.arange(5), Draw(1))
    found = client.curvature(torch.zeros(4, dtype=torch.float64))
    assert found.shape == (5, 1)
    assert client.evaluations.tolist() == (41 * client.sizes()).tolist()  # a gradient, and two for each of 20 steps
    some = torch.where(torch.arange(5)[:, None] == 2, 0.0, found)
    again = KNOWN.problem.client(np.arange(5), Draw(1))
    torch.testing.assert_close(again.curvature(torch.zeros(4, dtype=torch.float64), some), found)
    assert np.flatnonzero(again.evaluations).tolist() == [2]
    alone = KNOWN.problem.client(3, Draw(1))
    torch.testing.assert_close(alone.curvature(torch.zeros(4, dtype=torch.float64)), found[3])


def test_pfedme_without_a_pull_leaves_the_server_where_it_is():
    method = fedloom.PFedMe(lambda_=1e-9, lr=0.5, batch=None, local_rounds=3, inner_steps=40, personal_lr=0.8)
    torch.testing.assert_close(trained(method, 5).theta, fresh_model(KNOWN.problem, 0), rtol=0, atol=1e-7)
    torch.testing.assert_close(models_of(method, 5), KNOWN.optima, rtol=0, atol=1e-6)


def test_ditto_between_alone_and_together():
    together = trained(fedloom.FedAvg(lr=0.5, batch=None, steps=2), 80).theta
    steps = {"lr": 0.5, "batch": None, "steps": 2}
    near = models_of(fedloom.Ditto(lambda_=300.0, personal_lr=0.005, **steps), 80)
    assert float((near - together).abs().max()) < 0.01 * KNOWN.scale
    alone = models_of(fedloom.Ditto(lambda_=0.0, **steps), 80)
    torch.testing.assert_close(alone, KNOWN.optima, rtol=0, atol=1e-9)


def test_easgd_takes_replies_as_they_arrive():
    """Clients of unlike speeds, no rounds: in the end each is held near the centre, at the mixture on average."""
    fleet = fedloom.Fleet(delay_up=Distribution("uniform", 10.0, 12.0))
    schedule = fedloom.Schedule("async", buffer=1)
    method = fedloom.EASGD(lr=0.1, tau=1, batch=None, rho=0.4)
    run = trained(method, 400, fleet=fleet, schedule=schedule)
    centre = mixture(KNOWN, 0.4).mean(0)
    assert float((run.theta - centre).abs().max()) < 0.05 * KNOWN.scale


def test_many_strong_springs_are_warned_of():
    with pytest.warns(UserWarning, match="move the centre beyond"):
        trained(fedloom.EASGD(lr=0.5, rho=2.0, batch=None), 1)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (fedloom.L2GD(lambda_=-1.0, p=0.5), "lambda_ = -1.0 cannot be"),
        (fedloom.L2GD(p=1e-9), "with p = 1e-09 a round has about 1e.09 local steps; give a p of at least 1e-05"),
        (fedloom.L2GD(p=0.0), "p = 0.0 cannot be"),
        (fedloom.L2GD(p=1.0), "p = 1.0 cannot be"),
        (fedloom.L2GD(lambda_=0.0), "p\\* = 0; give a p"),
        (fedloom.L2GD(lambda_=2.0, p=0.1, lr=0.2), "make lr at most 0.05"),
        (fedloom.EASGD(rho=-0.1), "rho = -0.1 cannot be"),
        (fedloom.EASGD(beta=1.5), "beta = 1.5 cannot be"),
        (fedloom.PFedMe(lambda_=-2.0), "lambda_ = -2.0 cannot be"),
        (fedloom.Ditto(lambda_=-0.5), "lambda_ = -0.5 cannot be"),
        (fedloom.FineTune(personal_epochs=0), "personal_epochs = 0 cannot be"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_is_refused_before_any_work(method, said):
    with pytest.raises(ConfigError, match=said):
        trained(method, 1)


def test_a_step_beyond_the_mean_is_refused_once_the_curvature_is_known():
    with pytest.raises(RunError, match="make lr at most"):
        trained(fedloom.L2GD(lambda_=2.0, lr=5.0), 2)


def test_sums_are_enough_unless_the_curvature_is_asked_for():
    assert [fedloom.L2GD(p=0.5, lr=0.1).reduce, fedloom.L2GD(p=0.5).reduce] == ["sum", "each"]
    assert all(method.reduce == "sum" for method in (fedloom.EASGD(), fedloom.PFedMe(), fedloom.Ditto()))


def test_fine_tuning_is_judged_on_test_rows_after_fitting_training_rows():
    data = fedloom.federate("digits", clients=6, partition="dirichlet", alpha=0.2, validation=0.2)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    both = [fedloom.Evaluation(), fedloom.Evaluation("common", model="global")]
    run = fedloom.train(problem, fedloom.FineTune(), rounds=3, evaluate=both)
    told = run.history[-1]
    assert told["evaluation"]["accuracy"]["weighted"] > told["evaluations"]["common"]["accuracy"]["weighted"]
    resolved = fedloom.Evaluation().resolved(fedloom.FineTune())
    assert (resolved.model, resolved.split, resolved.adapt_split) == ("adapted", "test", "train")
    chosen = fedloom.Evaluation().on_validation(fedloom.FineTune()).resolved(fedloom.FineTune())
    assert (chosen.split, chosen.adapt_split) == ("validation", "train")
    newcomers = fedloom.Evaluation(on="target").resolved(fedloom.FineTune())
    assert (newcomers.split, newcomers.adapt_split) == ("query", "support")


def test_both_models_of_pfedme_can_be_evaluated():
    data = fedloom.federate("digits", clients=6, partition="dirichlet", alpha=0.2)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    both = [fedloom.Evaluation("own"), fedloom.Evaluation("common", model="global")]
    run = fedloom.train(problem, fedloom.PFedMe(), rounds=5, evaluate=both)
    own, common = run.history[-1]["evaluation"], run.history[-1]["evaluations"]["common"]
    assert own["accuracy"]["weighted"] > common["accuracy"]["weighted"]


@dataclass(frozen=True)
class Meant(fedloom.EASGD):
    """x_i moves by what the client computed, the centre by what arrived."""

    def client(self, client, received, memory):
        reply, kept = fedloom.EASGD.client(self, client, received, memory)
        return reply, {"x": kept["x"] - reply["dx"]}

    def settle(self, client, memory, sent, inbox):
        return memory


def test_a_client_that_moves_by_what_it_meant_is_seen():
    name = "quantised: client and centre move by one difference"
    for cls, passed in ((fedloom.EASGD, True), (Meant, False)):
        assert [one.passed for one in check_method("easgd", cls, DECLARATIONS["easgd"], checks=[name])] == [passed]
