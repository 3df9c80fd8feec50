"""The kit has teeth: a method that is broken in one place fails a check that says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance import broken_methods as broken
from conformance.own_methods import CONTROLLED
from fedloom.conformance import DECLARATIONS, Declaration, Outcome, check_method
from fedloom.methods import FedAvg, Method

PATH = "K local steps follow their closed form"
LIMIT = "K local steps end at their closed form, not at the optimum"
FEDAVG = [
    (broken.FlippedSign, f"known-answer: {PATH}"),
    (broken.FlippedSign, "known-answer: mini-batches find the optimum that all clients share"),
    (broken.ForgottenWeights, f"known-answer: {PATH}"),
    (broken.ForgottenWeights, f"known-answer: {LIMIT}"),
    (broken.WeightsOfAllClients, f"lost: {PATH}"),
    (broken.WeightsOfAllClients, f"sampled: {PATH}"),
    (broken.WeightsOfAllClients, f"late: {PATH}"),
    (broken.ForgottenStepSize, f"known-answer: {LIMIT}"),
    (broken.OneStepTooFew, f"known-answer: {LIMIT}"),
    (broken.SlightlyTooLong, f"known-answer: {PATH}"),
    (broken.IgnoredEffort, "effort"),
    (
        broken.IgnoredEffort,
        "known-answer: slow clients that do a part of their steps end at the closed form of these parts",
    ),
    (broken.ChangedMessage, "untouched"),
    (broken.ChangedState, "untouched"),
    (broken.MixedStack, "stack-call"),
    (broken.MixedStack, "stack-rounds"),
    (broken.FavouredFirst, "order"),
    (broken.FavouredFirst, f"lost: {PATH}"),
    (broken.PeekingServer, "sums"),
    (broken.ForeignRandomness, "seeds"),
    (broken.ForeignRandomness, "workers"),
    (broken.ForeignRandomness, "resume"),
    (broken.SameBatches, "seeds"),
    (broken.TrackedGradient, "plain-tensors"),
    (broken.NumberInState, "plain-tensors"),
    (broken.ComputingConstructor, "parameters"),
    (broken.WrongEstimate, "work"),
    (broken.NumberReader, "columns"),
    (broken.CountsItsCalls, "parameters"),
    (broken.CountsItsCalls, "seeds"),
    (broken.CountsItsCalls, "resume"),
    (broken.CountsItsCalls, "workers"),
]
LOCAL = [
    (broken.HiddenMemory, "resume"),
    (broken.HiddenMemory, "lost: each client follows the closed form of its own steps"),
    (broken.ForgetfulLocal, "known-answer: each client finds its own optimum"),
    (broken.SharedPersonalModel, "known-answer: each client finds its own optimum"),
]
FEDSGD = [
    (broken.ForgottenServerStep, "known-answer: it is gradient descent"),
    (broken.SummedGradients, "known-answer: it finds the optimum"),
]
CENTRAL = [(broken.ShrunkModel, "known-answer: it finds the optimum of the pooled rows")]
MEMORY = [
    (broken.FlippedCorrection, "known-answer: it finds the optimum"),
    (broken.ForgottenCorrection, "known-answer: it finds the optimum"),
    (broken.UndecodedMemory, "quantised: it finds the optimum"),
    (broken.UndecodedMemory, "quantised: c is the mean of the clients' c"),
    (broken.KeptWhenLost, "lost: it finds the optimum"),
    (broken.WrongCounts, "sampled: c is the mean of the clients' c"),
]
FEDASYNC = [
    (broken.FadingShare, "known-answer: old replies count for less: polynomial"),
    (broken.HingeTheOtherWay, "known-answer: old replies count for less: hinge"),
    (broken.AveragedBuffer, "known-answer: … or for as much as new ones"),
    (broken.AveragedBuffer, "known-answer: a round of proximal steps follows its closed form, reply by reply"),
]
FEDASYNC += [
    (broken.UsualFall, "known-answer: … as fast as a says"),
    (broken.UsualFall, "known-answer: … as fast as a says from b on"),
]
FEDBUFF = [
    (broken.DividedByTheWorth, "known-answer: old moves count for less"),
    (broken.AgelessBySize, "known-answer: … also with weights by size"),
]
FEDPROX = [
    (broken.AlwaysBySize, "known-answer: proximal momentum follows its recursion, the plain mean too"),
    (
        broken.AlwaysBySize,
        "known-answer: an adaptive μ rises with the loss, and falls after five rounds in which that fell",
    ),
]
SCAFFOLD = [
    (broken.BareServerStep, "known-answer: every round is Algorithm 1, the clients' controls too (option I)"),
    (broken.GradientAfterwards, "known-answer: every round is Algorithm 1, the clients' controls too (option I)"),
    (broken.WeighedBySize, "known-answer: every round is Algorithm 1, the clients' controls too (option I)"),
]
FEDAVGM = [(broken.FrozenMomentum, "known-answer: every round follows its recursion")]
FEDADAM = [(broken.FrozenAdam, "known-answer: every round is its line of Algorithm 2")]
ADMM = [
    (broken.CommonPenalty, "known-answer: … with penalties by size, equal weights and over-relaxation"),
    (broken.AlwaysWarm, "known-answer: … or from where the server is"),
    (broken.StopsAtOnce, "known-answer: every round is Boyd's, and it stops when both residuals are small"),
]
PER_FEDAVG = [
    (broken.UsualAdaptation, "known-answer: clients adapt by steps of α"),
    (broken.OneBatchForAll, "known-answer: three independent mini-batches"),
]
ADMM_FEDMETA = [
    (broken.FixedDistance, "known-answer: … with differences of gradients at the distance 1/(k + 100)"),
    (broken.WideStart, "known-answer: prices at the start are normal, and cut off"),
]
ASO_FED = [
    (broken.RowsOfLongAgo, "known-answer: a move counts for the rows that its client has now among all rows now"),
    (broken.MovedBeforeHeard, "quantised: the server moves by what the clients remember to have moved"),
    (
        broken.MovedBeforeHeard,
        "quantised: the server's copy of a single client's model is that model, bit by bit",
    ),
    (broken.ForgetsToPull, "known-answer: every visit is Algorithm 2"),
    (
        broken.ForgetsToPull,
        "known-answer: clients that keep their models end at the optimum of the Moreau envelopes, not of the losses",
    ),
    (broken.TheOtherOrder, "lost: every visit is Algorithm 2"),
    (broken.CollapsingFeatures, "known-answer: feature learning keeps the norm of every input"),
    (broken.WholeDelays, "known-answer: … with longer steps for clients that are slow"),
    (broken.OtherAxis, "known-answer: … with features weighted before they are handed out"),
    (broken.OtherAxis, "known-answer: … as it is printed"),
]
BROKEN = {
    "fedavg": FEDAVG,
    "local": LOCAL,
    "fedsgd": FEDSGD,
    "central": CENTRAL,
    "own": MEMORY,
    "fedasync": FEDASYNC,
    "fedbuff": FEDBUFF,
    "fedprox": FEDPROX,
    "scaffold": SCAFFOLD,
    "fedavgm": FEDAVGM,
    "fedadam": FEDADAM,
    "admm": ADMM,
    "per-fedavg": PER_FEDAVG,
    "admm-fedmeta": ADMM_FEDMETA,
    "aso-fed": ASO_FED,
}
CASES = [(name, method, check) for name, cases in BROKEN.items() for method, check in cases]


@pytest.mark.parametrize(
    ("original", "method", "check"), CASES, ids=[f"{method.__name__}-{check}" for _, method, check in CASES]
)
def test_a_broken_method_fails(original: str, method: type[Method], check: str) -> None:
    outcome = _single(check_method(original, method, DECLARATIONS.get(original, CONTROLLED), checks=[check]))
    assert not outcome.passed, outcome.detail


def test_hidden_memory_that_is_not_rolled_back_is_right_as_long_as_nothing_is_lost() -> None:
    outcome = _single(check_method("own", broken.KeptWhenLost, CONTROLLED, ["known-answer: it finds the optimum"]))
    assert outcome.passed, outcome.detail


def test_an_engine_that_miscounts_bytes_fails() -> None:
    declaration = replace(DECLARATIONS["fedavg"], schedule=broken.MiscountingRounds)
    outcome = _single(check_method("fedavg", FedAvg, declaration, checks=["messages"]))
    assert not outcome.passed
    assert outcome.value == 6  # three rounds, twice: without and with a lossy channel


def test_a_method_of_which_nothing_is_known_fails() -> None:
    assert not _single(check_method("mine", FedAvg, Declaration(), checks=["declared"])).passed


def test_a_method_that_does_not_say_what_lost_replies_do_fails() -> None:
    claims = DECLARATIONS["fedavg"].claims[1:2]
    outcome = _single(check_method("mine", FedAvg, claims, checks=["declared"]))
    assert not outcome.passed
    assert "lost" in outcome.detail


def test_an_indivisible_method_that_is_declared_divisible_fails_and_the_reverse() -> None:
    wrong = [
        ("fedsgd", replace(DECLARATIONS["fedsgd"], divisible=True)),
        ("fedavg", replace(DECLARATIONS["fedavg"], divisible=False)),
    ]
    for name, declaration in wrong:
        method = {"fedsgd": broken.FedSGD, "fedavg": FedAvg}[name]
        assert not _single(check_method(name, method, declaration, checks=["effort"])).passed


def _single(outcomes: list[Outcome]) -> Outcome:
    (outcome,) = outcomes
    return outcome
