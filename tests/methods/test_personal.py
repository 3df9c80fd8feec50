"""Personal layers: which coordinates they are, federations of one as a stack, any method around them, and the wire."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedloom
from fedloom.channel import Quantise, Transform
from fedloom.channel.channel import Ints
from fedloom.conformance.claims import HARDSHIPS, Declaration, Subject
from fedloom.conformance.declarations.layers import Federations
from fedloom.conformance.drive import same_bits
from fedloom.errors import ConfigError, ModelError
from fedloom.experiment import Experiment
from fedloom.federation.layers import Parts, named
from fedloom.federation.model import Slice
from fedloom.federation.randomness import Draw
from fedloom.federation.replies import Replies
from fedloom.methods import (
    ADMM,
    REGISTER,
    Central,
    Context,
    FedAdam,
    FedAsync,
    FedAvg,
    FedBuff,
    FedDyn,
    FedMetaSGD,
    FedPer,
    FedProx,
    FedRep,
    LGFedAvg,
    Local,
    PerFedAvg,
    Scaffold,
    ServerMethod,
    method_of,
)
from fedloom.methods.personal import Personal
from fedloom.types import Memory, Message
from problems import make_problem, run

F64 = torch.float64
SLICES = {
    name: Slice(2 * i, 2 * i + 2, (2,))
    for i, name in enumerate(("conv1.weight", "conv1.bias", "conv2.weight", "out.weight", "out.bias"))
}
COORDINATEWISE = {
    name: entry.cls
    for name, entry in REGISTER.items()
    if issubclass(entry.cls, ServerMethod) and entry.cls().coordinatewise and entry.cls().layout == "rows"
}


# Layers


@pytest.mark.parametrize(
    ("layers", "found"),
    [
        ("head", ("out.weight", "out.bias")),
        ("last", ("out.weight", "out.bias")),
        ("body", ("conv1.weight", "conv1.bias", "conv2.weight")),
        ("conv1", ("conv1.weight", "conv1.bias")),
        ("conv1.", ("conv1.weight", "conv1.bias")),
        ("out.bias, conv1", ("conv1.weight", "conv1.bias", "out.bias")),
        (["*.bias"], ("conv1.bias", "out.bias")),
        ("conv*", ("conv1.weight", "conv1.bias", "conv2.weight")),
    ],
)
def test_layers_are_named_by_words_names_and_patterns(layers: Any, found: tuple[str, ...]) -> None:
    assert named(SLICES, layers) == found


def test_a_layer_that_calls_itself_head_is_meant_by_its_name() -> None:
    slices = {"head.weight": Slice(0, 2, (2,)), "tail.weight": Slice(2, 4, (2,))}
    assert named(slices, "head") == ("head.weight",)
    assert named(slices, "last") == ("tail.weight",)


@pytest.mark.parametrize(
    ("layers", "said"), [("con", "no layer 'con'; it has conv1.weight, conv1.bias"), ("conv1,", "no layer ''")]
)
def test_a_layer_that_does_not_exist_is_refused_with_those_that_do(layers: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        named(SLICES, layers)


@pytest.mark.parametrize("layers", [[], "head", "body", "conv1.bias,out", "head,body", ["*.weight"]])
@pytest.mark.parametrize("several", [1, 2])
def test_a_vector_is_its_two_parts(layers: Any, several: int) -> None:
    parts, whole = Parts.of(SLICES, layers), torch.randn(3, several * 10)
    shared, personal = (parts.take(whole, mine) for mine in (False, True))
    assert shared.shape[-1] + personal.shape[-1] == several * 10
    assert torch.equal(parts.joined(shared, personal), whole)
    assert torch.equal(parts.joined(shared[0], personal)[0], whole[0])


# Federations of one


@pytest.mark.parametrize("name", COORDINATEWISE)
def test_a_stack_of_federations_of_one_steps_as_each_alone_bit_by_bit(name: str) -> None:
    cls, clients, n = COORDINATEWISE[name], 4, 6
    options: list[dict[str, Any]] = [{}]
    options += [{"bias_correction": "adam"}] if name in ("fedadam", "fedyogi") else []
    options += [{"adaptive": True}] if name == "fedprox" else []
    options += [{"server_optimiser": "adam", "bias_correction": "flower"}] if name in ("fedopt", "fedmeta-sgd") else []
    one = torch.ones(1, dtype=torch.int64)
    for given in options:
        method = cls(**given)
        assert isinstance(method, ServerMethod)
        data = fedloom.federate("digits", clients=clients)
        problem = fedloom.Problem(data, fedloom.build_model("linear", data))
        ctx = Context(0, 1, one, {}, torch.randn(clients, n), Draw(0), one - 1)
        stack = _for_each(method.server_init(ctx), clients)
        alone = [method.server_init(replace(ctx, theta0=row)) for row in ctx.theta0]
        width = stack["x"].shape[-1]
        client = problem.client(np.arange(clients))
        reply, _ = method.client(client, *_first(method, client, problem))
        for t in range(3):
            ctx = replace(ctx, round=t)
            made = {key: torch.randn(clients, width) if value.dim() > 1 else value for key, value in reply.items()}
            stack = _for_each(method.server(stack, Replies.alone(made), ctx), clients)
            for i in range(clients):
                alone[i] = method.server(alone[i], Replies.alone({key: v[i] for key, v in made.items()}), ctx)
                for key, value in alone[i].items():
                    assert same_bits(stack[key][i].contiguous(), value.contiguous()), (given, key)


def _for_each(state: dict[str, torch.Tensor], clients: int) -> dict[str, torch.Tensor]:
    return {key: value.expand(clients) if value.dim() == 0 else value for key, value in state.items()}


def _first(method: ServerMethod, client: Any, problem: Any) -> tuple[Message, Memory]:
    ids = torch.from_numpy(client.clients)
    ctx = Context(0, 4, torch.ones(4), {}, problem.model.init(0), Draw(0), ids)
    received = method.broadcast(method.server_init(ctx), ids)
    return received, method.client_init(client, received)


INNER: dict[str, ServerMethod] = {
    "scaffold": Scaffold(lr=0.2, batch=5, server_lr="exponential:1.0:0.8"),
    "scaffold I": Scaffold(lr=0.2, batch=5, option="I"),
    "fedadam": FedAdam(lr=0.2, batch=5, bias_correction="adam"),
    "fedprox": FedProx(lr=0.2, batch=5, adaptive=True),
    "feddyn": FedDyn(lr=0.2, batch=5, weighting="size"),
    "per-fedavg": PerFedAvg(lr=0.2, steps=2),
    "meta-sgd": FedMetaSGD(lr=0.2, gradient_norm=True),
    "fedasync": FedAsync(lr=0.2, batch=5),
    "fedbuff": FedBuff(lr=0.2, batch=5),
    "local": Local(lr=0.2, batch=5),
}


@pytest.mark.parametrize("hardship", ["ideal", "lost"])
@pytest.mark.parametrize("inner", INNER)
def test_any_method_is_a_federation_of_all_on_the_shared_layers_and_of_one_on_the_personal(
    inner: str, hardship: str
) -> None:
    subject, claim = Subject("personal", Personal(INNER[inner]), Declaration()), Federations("", rounds=3)
    how = () if hardship == "ideal" else (HARDSHIPS[hardship],)
    finding = claim.verify(subject, *how)
    assert finding.passed, finding.detail


# Known answers


def test_without_personal_layers_it_is_the_inner_method_bit_by_bit() -> None:
    problem = make_problem("mlp")
    for method in (FedAvg(lr=0.2, batch=4), Scaffold(lr=0.2, batch=4), FedAdam(batch=4)):
        plain = run(problem, method, 4, transforms=(Quantise(4),), evaluations=())
        parted = run(problem, Personal(method, layers=[]), 4, transforms=(Quantise(4),), evaluations=())
        assert torch.equal(parted.state["x"], plain.state["x"])
        assert torch.equal(Personal(method, layers=[]).model(parted.state), plain.state["x"])


def test_lg_fedavg_with_the_split_swapped_is_fedper_bit_by_bit() -> None:
    problem = make_problem("mlp")
    how: dict[str, Any] = {"lr": 0.2, "batch": 4, "weighting": "uniform"}
    one, other = run(problem, FedPer(**how), 4), run(problem, LGFedAvg(**how, layers="head"), 4)
    assert same_bits(one.state["x"], other.state["x"])
    assert all(same_bits(a, b) for a, b in zip(*(_memories(engine) for engine in (one, other)), strict=True))


def _memories(engine: Any) -> list[torch.Tensor]:
    columns, known = engine.store.gather(torch.arange(5))
    assert bool(known.all())
    return [columns[key] for key in sorted(columns)]


def test_a_name_of_its_own_is_the_wrapper_with_the_same_settings() -> None:
    problem = make_problem("mlp")
    flat, nested = FedPer(lr=0.2, batch=4), Personal(FedAvg(lr=0.2, batch=4))
    one, other = (run(problem, method, 3) for method in (flat, nested))
    assert all(same_bits(one.state[key], other.state[key]) for key in one.state)


# The wire


class Spy(Transform):
    """Keeps all that passes, up and down."""

    lossy = False

    def __init__(self) -> None:
        self.seen: list[Message] = []

    def encode(self, message: Message, memory: Memory, clients: Ints, draw: Draw) -> tuple[Message, Memory]:
        self.seen.append({key: value.clone() for key, value in message.items()})
        return message, memory

    def decode(self, sent: Message) -> Message:
        return sent

    def send_down(self, message: Message, draw: Draw) -> Message:
        self.seen.append({key: value.clone() for key, value in message.items()})
        return message


@pytest.mark.parametrize("inner", ["scaffold", "fedadam", "meta-sgd"])
@pytest.mark.parametrize("start", ["own", "common"])
def test_no_personal_number_is_in_any_message(inner: str, start: Any) -> None:
    problem, spy, method = make_problem("mlp", sizes=(7, 3, 12, 5, 2)), Spy(), Personal(INNER[inner], start=start)
    engine = run(problem, method, 3, transforms=(spy,), evaluations=())
    memory, _ = engine.store.gather(torch.arange(5))
    parts = Parts.of(problem.model.slices, "head")
    own = [value for key, value in memory.items() if key.startswith("own ")]
    assert len(own) > 0
    secret = {number for value in own for number in value.flatten().tolist()} - {0.0, 1.0, 2.0, 3.0}
    assert len(spy.seen) >= 6
    for message in spy.seen:
        for value in message.values():
            assert value.shape[-1] in (parts.count(False), 2 * parts.count(False), 1)
            assert not secret & set(value.flatten().tolist()) - _fixed(method)


def _fixed(method: Personal) -> set[float]:
    """Numbers that all know: Meta-SGD's first α, Adam's first v."""
    return {float(torch.tensor(number)) for number in (0.1, 1e-6)}


@pytest.mark.parametrize(("start", "warned"), [("sent", False), ("own", True), ("common", True)])
def test_personal_layers_begin_at_a_given_model_if_that_is_sent_and_it_is_said_if_not(start: Any, warned: bool) -> None:
    problem, parts = make_problem("mlp"), Parts.of(make_problem("mlp").model.slices, "body")
    given, method = problem.model.init(77), LGFedAvg(lr=1e-12, start=start)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fedloom.train(problem, method, rounds=1, theta0=given, evaluate=(), progress=False)
    told = [str(one.message) for one in said if "initial model" in str(one.message)]
    assert told == [f"the initial model is not used for {method.starts_without}"] * warned
    engine = run(problem, method, 1, evaluations=(), theta0=given)
    assert torch.allclose(engine.state["x"], parts.take(given, False))
    own = engine.store.gather(torch.arange(5))[0]["own x"]
    assert torch.allclose(own, parts.take(given, True).expand_as(own)) != warned


def test_a_start_that_is_sent_is_counted() -> None:
    problem = make_problem("mlp")
    down = [run(problem, FedPer(start=start), 1).clocks.bytes_down for start in ("common", "sent")]
    head = Parts.of(problem.model.slices, "head").count(True)
    assert down[1] - down[0] >= 4 * head * 5


# As users give it


def test_any_method_is_given_personal_layers_by_one_setting() -> None:
    expected = Personal(Scaffold(lr=0.05), layers="head")
    assert method_of("scaffold:lr=0.05,personal=head") == expected
    given = {"data.name": "digits", "method.name": "scaffold", "method.lr": 0.05, "method.personal": "head"}
    made = Experiment.load(None, given)
    assert made.method == expected
    assert made.label == "scaffold, personal head"
    assert made.resolved()["method"]["inner"]["name"] == "scaffold"
    with pytest.raises(ConfigError, match=r"method.personal.*valid string"):
        Experiment.load(None, {**given, "method.personal": 3})


# Refusals


def test_it_is_said_if_nothing_is_shared() -> None:
    with pytest.warns(UserWarning, match=r"all layers of the model are personal \(.*every client learns alone"):
        fedloom.train(make_problem("linear"), FedPer(), rounds=1, progress=False)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Personal(ADMM()), "ADMM cannot have personal layers"),
        (Personal(Central()), "Central has no clients with rows of their own"),
        (FedPer(layers="nose"), "no layer 'nose'; it has"),
        (Personal(FedPer()), "FedPer cannot have personal layers"),
        (FedRep(layers="head,body"), "fedrep needs a shared part, and all layers of the model are personal"),
        (FedPer(start="there"), "start = 'there' cannot be"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_refused_before_any_work(method: Any, said: str) -> None:
    with pytest.raises((ConfigError, ModelError), match=said):
        fedloom.train(make_problem("mlp"), method, rounds=1)
