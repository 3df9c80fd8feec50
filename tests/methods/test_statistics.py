"""Models with running statistics: passes move them, the server averages them, and no method does anything else."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedloom
from fedloom.channel import Channel
from fedloom.channel.quantise import Quantise
from fedloom.engine.fleet import Fleet
from fedloom.errors import ConfigError
from fedloom.federation.batches import Plan, steps_of
from fedloom.federation.distributions import Distribution
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.federation.replies import Replies
from fedloom.federation.statistics import Trail
from fedloom.methods import method_of
from fedloom.methods.method import Context, NodeMethod
from fedloom.methods.statistics import KEY, Statistics, with_statistics
from fedloom.prediction import Predictor
from fedloom.prediction.export import export
from problems import make_data

F64 = torch.float64
SIZES = (9, 13, 18)
MOMENTUM = 0.3


class Normal(nn.Module):
    """A layer that normalises, under a name that does not say so."""

    def __init__(self, norm: str = "batch") -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
        self.odd: nn.Module = nn.BatchNorm1d(5, momentum=MOMENTUM) if norm == "batch" else nn.GroupNorm(1, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.head(torch.tanh(self.odd(self.body(x)))))


def made(norm: str = "batch", sizes: Sequence[int] = SIZES, build: Callable[[], nn.Module] | None = None) -> Problem:
    """Clients with unequal rows, each shifted and scaled by its own."""
    data = make_data("classification", sizes, dtype=F64)
    for client, rows in enumerate(data.splits["train"][i] for i in range(len(sizes))):
        data.x[rows] = data.x[rows] * (1 + client) + client
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = Normal(norm) if build is None else build()
    return Problem(data, fedloom.build_model(module), dtype=F64)


def tail_of(problem: Problem, theta: Tensor) -> Tensor:
    return theta[..., problem.model.n :]


def trained_by_hand(
    problem: Problem, client: int, module: nn.Module, lr: float, batch: int, round: int = 0, shift: Tensor | None = None
) -> int:
    """One epoch of a plain torch loop over the rows that the client would take; gives the number of steps."""
    span = problem.client(client).span()
    count = steps_of(span.sizes, batch, 1, None)
    for step in Plan.of(span, np.array([client]), Draw(0, round), batch, count):
        x, y = problem.take(step.rows[0])
        module.train(len(x) > 1)  # a row alone has no variance: it is normalised by the running statistics
        module.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter -= lr * parameter.grad
                if shift is not None:
                    parameter -= lr * problem.model.slices[name].of(shift)
    return int(count[0])


def vector_of(module: nn.Module) -> Tensor:
    odd = module.odd
    return torch.cat([p.detach().reshape(-1) for p in (*module.parameters(), odd.running_mean, odd.running_var)])


def run(problem: Problem, method: Any, rounds: int = 1, **how: Any) -> Any:
    return fedloom.train(problem, method, rounds=rounds, evaluate=[], executor="serial", progress=False, **how)


LR, BATCH = 0.2, 4


def hand(problem: Problem, clients: Sequence[int], start: Tensor | None = None, t: int = 0) -> Tensor:
    """The models of clients, statistics and all, after an epoch of a plain torch loop."""
    found = []
    for client in clients:
        module = problem.model.built().to(F64)
        if start is not None:
            put(problem, module, start)
        trained_by_hand(problem, client, module, LR, BATCH, t)
        found.append(vector_of(module))
    return torch.stack(found)


def put(problem: Problem, module: nn.Module, theta: Tensor) -> None:
    state = module.state_dict()
    for name, value in problem.model.views(theta).items():
        state[name].copy_(value)


def mean_of(values: Tensor, sizes: Sequence[int] = SIZES) -> Tensor:
    weights = torch.tensor(sizes, dtype=F64)
    return weights @ values / weights.sum()


def test_one_client_of_fedavg_is_a_plain_torch_loop() -> None:
    problem = made(sizes=(14,))
    theta = hand(problem, [0])[0]
    found = run(problem, fedloom.FedAvg(lr=LR, batch=BATCH)).theta
    assert torch.allclose(found, theta, rtol=0, atol=1e-12)
    again = hand(problem, [0], theta, 1)[0]
    assert torch.allclose(run(problem, fedloom.FedAvg(lr=LR, batch=BATCH), 2).theta, again, rtol=0, atol=1e-12)


TRAINED: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"mu": 0.0},
    "fedadam": {},
    "fedavgm": {"server_lr": 0.3},
    "fedyogi": {},
    "ditto": {"lambda_": 0.7},
    "fine-tune": {},
    "fedper": {},
    "fedbuff": {"server_lr": 0.4, "weighting": "size"},
    "scaffold": {"server_lr": 0.3},
    "fedu": {},
}
"""Methods whose clients train as FedAvg's do in the first round, whatever their servers make of it."""


@pytest.mark.parametrize("name", TRAINED)
def test_the_statistics_are_the_mean_of_the_clients_whatever_the_method_does_to_its_model(name: str) -> None:
    problem = made()
    method = replace(method_of(name), lr=LR, batch=BATCH, **TRAINED[name])
    right = hand(problem, range(3))
    mean = right.mean(0) if name in ("scaffold", "fedu") else mean_of(right)
    schedule = {"schedule": fedloom.Schedule("rounds")} if name == "fedbuff" else {}
    found = run(problem, method, **schedule).theta
    assert torch.allclose(tail_of(problem, found), tail_of(problem, mean), rtol=0, atol=1e-12)


def moved(s: Tensor, h: Tensor) -> Tensor:
    """Running statistics after a batch, as torch's documentation has them: the variance of a batch without its bias."""
    mean, var = s.chunk(2)
    new = MOMENTUM * torch.cat([h.mean(0), h.var(0)])
    return (1 - MOMENTUM) * torch.cat([mean, var]) + new


def rows_of(problem: Problem, client: int, split: str) -> Tensor:
    return problem.x[problem.client(client).span(split).rows()]


def hidden(module: nn.Module, x: Tensor) -> Tensor:
    """What the layer that normalises is given."""
    return module.body(x).detach()


def test_a_gradient_moves_the_statistics_by_its_one_pass() -> None:
    problem = made()
    module, start = problem.model.built().to(F64), problem.model.tailed(problem.model.init(0, F64))
    found = run(problem, fedloom.FedSGD(lr=7.0)).theta
    right = torch.stack(
        [moved(tail_of(problem, start), hidden(module, rows_of(problem, i, "train"))) for i in range(3)]
    )
    assert torch.allclose(tail_of(problem, found), mean_of(right), rtol=0, atol=1e-12)


@pytest.mark.parametrize("order", ["exact", "first", "difference"])
def test_a_meta_gradient_moves_them_by_its_support_and_then_by_its_query(order: Literal["exact", "first"]) -> None:
    problem = made()
    alpha, right = 0.15, []
    for i in range(3):
        module = problem.model.built().to(F64).train()
        span = problem.client(i).span("support").rows()
        nn.functional.cross_entropy(module(problem.x[span]), problem.y[span]).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= alpha * parameter.grad
        module(rows_of(problem, i, "query"))
        right.append(vector_of(module))
    found = run(problem, fedloom.FedMetaMAML(alpha=alpha, lr=0.5, order=order)).theta
    assert torch.allclose(tail_of(problem, found), tail_of(problem, torch.stack(right).mean(0)), rtol=0, atol=1e-12)
    sgd = run(problem, fedloom.FedMetaSGD(alpha=alpha, lr=0.5, order=order)).theta
    assert torch.allclose(tail_of(problem, sgd), tail_of(problem, found), rtol=0, atol=1e-12)


def test_the_exact_meta_gradient_is_that_of_autograd_through_the_batch() -> None:
    problem = made()
    client, alpha = problem.client(1), 0.15
    w = problem.model.init(0, F64).requires_grad_()
    module = problem.model.built().to(F64).train()
    (xs, ys), (xq, yq) = (problem.take(client.span(split).rows()) for split in ("support", "query"))

    def loss(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        views = {name: where.of(theta) for name, where in problem.model.slices.items()}
        return nn.functional.cross_entropy(torch.func.functional_call(module, views, (x,)), y)

    (inner,) = torch.autograd.grad(loss(w, xs, ys), w, create_graph=True)
    (right,) = torch.autograd.grad(loss(w - alpha * inner, xq, yq), w)
    found, _ = client.meta_grad(problem.model.tailed(w.detach()), alpha)
    assert torch.allclose(found[: problem.model.n], right, rtol=0, atol=1e-12)
    assert not found[problem.model.n :].any()


def test_fedadam_is_its_formulas_on_the_parameters() -> None:
    problem = made()
    n, beta1, beta2, tau, eta = problem.model.n, 0.8, 0.9, 0.05, 0.1
    x = problem.model.tailed(problem.model.init(0, F64))
    m, v = torch.zeros(n, dtype=F64), torch.full((n,), tau**2, dtype=F64)
    for t in range(3):
        y = mean_of(hand(problem, range(3), x, t))
        delta = (y - x)[:n]
        m = beta1 * m + (1 - beta1) * delta
        v = beta2 * v + (1 - beta2) * m**2
        x = torch.cat([x[:n] + eta * m / (v.sqrt() + tau), y[n:]])
    adam = fedloom.FedAdam(lr=LR, batch=BATCH, server_lr=eta, beta1=beta1, beta2=beta2, tau=tau)
    found = run(problem, adam, 3)
    assert torch.allclose(found.theta, x, rtol=0, atol=1e-11)
    assert all(value.shape[-1:] != (problem.model.width,) for value in found.state.values())


def test_scaffold_is_its_formulas_on_the_parameters() -> None:
    problem = made()
    n, eta = problem.model.n, 0.7
    x = problem.model.tailed(problem.model.init(0, F64))
    c, own = torch.zeros(n, dtype=F64), torch.zeros(3, n, dtype=F64)
    for t in range(2):
        ys, news = [], []
        for i in range(3):
            module = problem.model.built().to(F64)
            put(problem, module, x)
            steps = trained_by_hand(problem, i, module, LR, BATCH, t, c - own[i])
            ys.append(vector_of(module))
            news.append(own[i] - c + (x - ys[-1])[:n] / (steps * LR))
        y = torch.stack(ys).mean(0)
        new = torch.stack(news)
        c, own = c + (new - own).mean(0), new
        x = torch.cat([x[:n] + eta * (y - x)[:n], y[n:]])
    found = run(problem, fedloom.Scaffold(lr=LR, batch=BATCH, server_lr=eta), 2)
    assert torch.allclose(found.theta, x, rtol=0, atol=1e-11)


OWN = {
    "easgd": fedloom.EASGD(lr=LR, batch=BATCH, tau=3),
    "mixture-admm": fedloom.MixtureADMM(solver="gradient", lr=0.05, batch=BATCH),
    "pfedme": fedloom.PFedMe(batch=BATCH, solver="gradient"),
}
"""Methods whose clients train models of their own alone."""


@pytest.mark.parametrize("name", OWN)
@pytest.mark.filterwarnings("ignore:.*on a network")
def test_the_server_has_the_mean_of_what_models_of_the_clients_own_have(name: str, tmp_path: Path) -> None:
    problem = made()
    found = run(problem, OWN[name], 2, out=tmp_path / "run")
    tails = tail_of(problem, torch.stack([found.predictor(i).theta for i in range(3)]))
    assert torch.allclose(found.state[KEY], tails.mean(0), rtol=0, atol=1e-12)
    assert (tails[0] - tails[1]).abs().min() > 1e-6


def test_steps_that_a_method_makes_itself_move_the_statistics_like_any_other() -> None:
    problem = made(sizes=(8, 12, 16))
    found = run(problem, fedloom.EASGD(lr=LR, batch=BATCH, tau=2)).state
    right = run(problem, fedloom.FedAvg(lr=LR, batch=BATCH, steps=2, weighting="uniform")).state
    assert torch.allclose(found[KEY], right[KEY], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "method",
    [
        fedloom.L2GD(lambda_=0.3),
        fedloom.ADMM(solver="gradient", lr=0.05, steps=3),
        fedloom.FedDyn(lr=0.05, batch=BATCH),
        fedloom.ASOFed(batch=BATCH),
        fedloom.ADMMFedMeta(),
        fedloom.FedU(lr=LR, batch=BATCH),
    ],
)
@pytest.mark.filterwarnings("ignore:.*on a network")
def test_other_methods_move_them_too(method: Any) -> None:
    problem = made()
    start = tail_of(problem, problem.model.tailed(problem.model.init(0, F64)))
    state = run(problem, method, 2, schedule="rounds").state
    assert state[KEY].isfinite().all()
    assert (state[KEY].chunk(2)[1] > 0).all()
    assert not torch.isclose(state[KEY], start).any()


def test_adam_would_make_something_else_of_them() -> None:
    problem = made()
    adam = fedloom.FedAdam(lr=LR, batch=BATCH, server_lr=0.5)
    start = problem.model.tailed(problem.model.init(0, F64))
    y = mean_of(hand(problem, range(3)))
    through = adam.server_opt().step(adam.server_opt().init(start), y - start, 0.5)["x"]
    found = run(problem, adam).theta
    assert torch.allclose(found[: problem.model.n], through[: problem.model.n], rtol=0, atol=1e-12)
    assert (tail_of(problem, found) - tail_of(problem, through)).abs().min() > 1e-3


def test_a_group_norm_has_no_statistics_and_takes_the_plain_path() -> None:
    problem = made("group")
    method = fedloom.FedAdam(lr=LR, batch=BATCH)
    assert with_statistics(method, problem.model) is method
    assert problem.model.width == problem.model.n
    assert KEY not in run(problem, method).state


def test_a_resumed_run_and_other_executors_give_the_same_bits(tmp_path: Path) -> None:
    problem, method = made(), fedloom.Personal(fedloom.FedAdam(lr=LR, batch=BATCH), layers="norm")
    whole = run(problem, method, 3)
    assert torch.equal(run(problem, method, 3, stack=2).theta, whole.theta)
    run(problem, method, 1, out=tmp_path / "run")
    resumed = run(problem, method, 3, out=tmp_path / "run", resume=True)
    for state in (resumed.state, run_in_processes(problem, method, 3)):
        assert state.keys() == whole.state.keys()
        assert all(torch.equal(state[key], value) for key, value in whole.state.items())


def run_in_processes(problem: Problem, method: Any, rounds: int) -> dict[str, Tensor]:
    found = fedloom.train(problem, method, rounds=rounds, evaluate=[], executor="processes", workers=2, progress=False)
    return found.state


def test_a_coarse_channel_leaves_variances_above_zero() -> None:
    problem = made()
    coarse = run(problem, fedloom.FedAvg(lr=LR, batch=BATCH), 5, channel=Channel([Quantise(bits=2)]))
    fine = run(problem, fedloom.FedAvg(lr=LR, batch=BATCH), 5, channel=Channel([Quantise(bits=16)]))
    plain = run(problem, fedloom.FedAvg(lr=LR, batch=BATCH), 5)
    assert (coarse.state[KEY].chunk(2)[1] >= 0).all()
    assert torch.allclose(fine.state[KEY], plain.state[KEY], rtol=0, atol=1e-2)
    assert not torch.equal(fine.state[KEY], plain.state[KEY])


def test_replies_that_are_old_move_the_statistics_by_less() -> None:
    problem = made()
    wrapped = with_statistics(fedloom.FedAsync(), problem.model)
    assert isinstance(wrapped, Statistics)
    n, s = problem.model.n, torch.arange(1.0, 11.0, dtype=F64)
    state = {"x": torch.zeros(n, dtype=F64), KEY: s}
    column = {"x": torch.ones(1, n, dtype=F64), KEY: torch.full((1, 10), 2.0, dtype=F64)}
    for age in (0, 3):
        replies = Replies.of(torch.tensor([0]), column, torch.tensor([age]), "each")
        ctx = Context(0, 3, torch.ones(3), problem.model.slices, s, Draw(0), torch.arange(3))
        assert torch.allclose(wrapped.server(state, replies, ctx)[KEY], s + 2 / (1 + age))


def test_without_waiting_the_statistics_stay_among_those_of_the_clients() -> None:
    problem = made()
    method = fedloom.FedBuff(lr=1e-9, batch=None, steps=12)
    fleet = Fleet(delay_up=Distribution.parse("uniform:1:3"))
    found = run(problem, method, 40, fleet=fleet, schedule=fedloom.Schedule("async", concurrency=3, buffer=1)).state
    h = [hidden(problem.model.built().to(F64), rows_of(problem, i, "train")) for i in range(3)]
    each = torch.stack([torch.cat([one.mean(0), one.var(0)]) for one in h])
    low, high = each.amin(0), each.amax(0)
    slack = 0.5 * (high - low)
    assert ((found[KEY] > low - slack) & (found[KEY] < high + slack)).all()


def test_lost_replies_leave_a_clients_statistics_as_they_were() -> None:
    problem = made()
    found = run(problem, fedloom.FedBN(lr=LR, batch=BATCH), 3, fleet=Fleet(dropout=1.0))
    assert torch.equal(found.theta, problem.model.tailed(problem.model.init(0, F64)))


def personal_models(problem: Problem, method: Any, rounds: int, folder: Path) -> Tensor:
    found = run(problem, method, rounds, out=folder)
    names = range(problem.data.clients)
    return torch.stack([found.predictor(i).theta for i in names])


def test_fedbn_keeps_at_home_what_normalises_whatever_it_is_called(tmp_path: Path) -> None:
    problem = made()
    found = personal_models(problem, fedloom.FedBN(lr=LR, batch=BATCH), 1, tmp_path / "run")
    right = hand(problem, range(3))
    mine = torch.cat(
        [
            torch.full((where.stop - where.start,), name.startswith("odd"))
            for name, where in problem.model.tensors.items()
        ]
    )
    assert torch.allclose(found[:, mine], right[:, mine], rtol=0, atol=1e-12)
    assert torch.allclose(found[:, ~mine], mean_of(right)[~mine].expand(3, -1), rtol=0, atol=1e-12)
    assert int(mine.sum()) == 20


def test_no_message_of_fedbn_has_a_number_of_a_layer_that_normalises() -> None:
    problem = made()
    method = with_statistics(fedloom.FedBN(lr=LR, batch=BATCH), problem.model)
    assert isinstance(method, Statistics)
    ids = torch.arange(3)
    theta0 = problem.model.tailed(problem.model.init(0, F64))
    ctx = Context(0, 3, torch.ones(3), problem.model.slices, theta0, Draw(0), ids)
    state = method.server_init(ctx)
    received = method.broadcast(state, ids)
    client = problem.client(ids.numpy(), Draw(0))
    reply, _ = method.client(client, received, method.client_init(client, received))
    for message in (received, reply):
        assert {key: value.shape[-1] for key, value in message.items()} == {next(iter(message)): problem.model.n - 10}


def test_the_statistics_of_a_personal_layer_stay_with_it_and_others_are_averaged(tmp_path: Path) -> None:
    class Two(Normal):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.last(super().forward(x)))

    problem = made(build=Two)
    method = fedloom.Personal(fedloom.FedAvg(lr=LR, batch=None, steps=1), layers=["last"])
    found = personal_models(problem, method, 2, tmp_path / "run")
    views = problem.model.views(found)
    for name, value in views.items():
        assert torch.equal(value[0], value[1]) == (not name.startswith("last")), name


def test_statistics_stay_at_home_also_of_a_layer_that_has_nothing_else(tmp_path: Path) -> None:
    def bare() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 3))

    problem = made(build=bare)
    found = personal_models(problem, fedloom.FedBN(lr=LR, batch=None, steps=1), 1, tmp_path / "run")
    x = [rows_of(problem, i, "train") for i in range(3)]
    right = torch.stack([torch.cat([0.1 * one.mean(0), 0.9 + 0.1 * one.var(0)]) for one in x])
    assert torch.allclose(tail_of(problem, found), right, rtol=0, atol=1e-12)
    assert torch.equal(found[0, : problem.model.n], found[1, : problem.model.n])


@pytest.mark.parametrize("start", ["own", "common", "sent"])
def test_statistics_at_home_begin_where_the_personal_layers_do(start: Literal["own", "sent"], tmp_path: Path) -> None:
    problem = made()
    theta0 = problem.model.tailed(problem.model.init(0, F64)).clone()
    tail_of(problem, theta0).copy_(torch.arange(1.0, 11.0))
    method = fedloom.FedBN(lr=LR, batch=BATCH, start=start)
    found = run(problem, method, theta0=theta0, out=tmp_path / "run")
    tails = tail_of(problem, torch.stack([found.predictor(i).theta for i in range(3)]))
    begun = theta0 if start == "sent" else problem.model.tailed(problem.model.init(0, F64))
    assert torch.allclose(tails, tail_of(problem, hand(problem, range(3), begun)), rtol=0, atol=1e-12)


def test_a_server_optimiser_inside_never_sees_statistics_at_home(tmp_path: Path) -> None:
    problem = made()
    adam = fedloom.FedAdam(lr=LR, batch=BATCH, server_lr=0.5)
    found = personal_models(problem, fedloom.Personal(adam, layers="norm"), 1, tmp_path / "run")
    right = hand(problem, range(3))
    assert torch.allclose(tail_of(problem, found), tail_of(problem, right), rtol=0, atol=1e-12)


def test_fedrep_moves_the_statistics_by_the_steps_of_the_head_and_of_the_body() -> None:
    problem = made()
    method = fedloom.FedRep(lr=LR, batch=None, head_epochs=2, start="sent")
    found, models = run(problem, method).theta, []
    for client in range(len(SIZES)):
        module = problem.model.built().to(F64)
        x, y = problem.take(problem.data.splits["train"][client])
        for part in ("head", "head", "body"):
            module.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    if name.startswith("head") == (part == "head"):
                        parameter -= LR * parameter.grad
        models.append(vector_of(module))
    shared = torch.ones(problem.model.width, dtype=torch.bool)
    for name, where in problem.model.slices.items():
        shared[where.start : where.stop] = not name.startswith("head")
    assert torch.allclose(found[shared], mean_of(torch.stack(models))[shared], rtol=0, atol=1e-12)


def test_parts_of_others_are_used_with_the_statistics_of_all() -> None:
    problem = made()
    evaluate = fedloom.Evaluation(model="personal", parts="average", split="train")
    done = fedloom.train(problem, fedloom.FedPer(lr=LR, publish=True), rounds=2, evaluate=evaluate, executor="serial")
    assert np.isfinite(done.summary["metrics"]["loss"])
    with pytest.raises(ConfigError, match="cannot publish layers with running statistics"):
        run(problem, fedloom.FedPer(layers="norm", publish=True))


def test_dittos_own_models_have_their_own_statistics(tmp_path: Path) -> None:
    problem = made()
    method = fedloom.Ditto(lr=LR, batch=BATCH, lambda_=0.0, personal_lr=0.01)
    found = personal_models(problem, method, 2, tmp_path / "run")
    assert not torch.equal(tail_of(problem, found[0]), tail_of(problem, found[1]))
    views, x = problem.model.views(found[2]), rows_of(problem, 2, "train")
    h = nn.functional.linear(x, views["body.weight"], views["body.bias"])
    assert torch.allclose(views["odd.running_mean"], h.mean(0), rtol=0.5, atol=0.5)


@pytest.mark.parametrize("kind", ["state-dict", "safetensors", "torchscript"])
def test_predictions_and_exports_have_the_statistics(kind: str, tmp_path: Path) -> None:
    data = make_data("classification", SIZES, (1, 8, 8))
    problem = Problem(data, fedloom.build_model("resnet8", data, width=4))
    found = run(problem, fedloom.FedAvg(lr=LR, batch=BATCH), 2, out=tmp_path / "run")
    module = found.module()
    assert torch.equal(module.first.running_mean, problem.model.views(found.theta)["first.running_mean"])
    assert module.first.running_mean.abs().sum() > 0
    right = module(data.x).softmax(1)
    for predictor in (found.predictor(), Predictor.open(tmp_path / "run")):
        said = predictor.predict(data.x)
        assert np.allclose(said.filter(like="probability").to_numpy(), right.detach().numpy(), atol=1e-5)
    export(found.predictor(), tmp_path / "out", kind)
    loaded = runpy.run_path(str(tmp_path / "out" / "load.py"))
    assert np.allclose(loaded["outputs"](data.x.flatten(1).tolist()), module(data.x).detach().numpy(), atol=1e-5)


def test_a_method_with_several_models_at_its_server_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"several models at its server.*GroupNorm"):
        run(made(), "clustered")


@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
@pytest.mark.filterwarnings("ignore:.*on a network")
def test_solvers_that_need_the_loss_as_a_function_are_refused(solver: Literal["newton", "lbfgs"]) -> None:
    with pytest.raises(ConfigError, match=f"{solver}.*running statistics.*'gradient'"):
        run(made(), fedloom.ADMM(solver=solver))
    with pytest.raises(ConfigError, match=r"L-BFGS.*running statistics"):
        run(made(), "admm-meta-exact")


def test_nodes_without_a_server_are_refused() -> None:
    class Gossip(NodeMethod):
        def node(self, client: Any, inbox: Any, memory: Any) -> Any:
            return inbox, memory

    with pytest.raises(ConfigError, match="Gossip has no server that could average"):
        with_statistics(Gossip(), made().model)


def test_a_model_may_begin_with_the_statistics_of_an_earlier_one() -> None:
    problem, method = made(), fedloom.FedAvg(lr=LR, batch=BATCH)
    first = run(problem, method).theta
    right = mean_of(hand(problem, range(3), first))
    assert torch.allclose(run(problem, method, theta0=first).theta, right, rtol=0, atol=1e-12)
    bare = torch.cat([first[: problem.model.n], torch.tensor([0.0] * 5 + [1.0] * 5, dtype=F64)])
    right = mean_of(hand(problem, range(3), bare))
    assert torch.allclose(run(problem, method, theta0=first[: problem.model.n]).theta, right, rtol=0, atol=1e-12)


def _through_the_method(self: Statistics, state: Any, replies: Replies, ctx: Context) -> Any:
    """A fault: the server's step size for the statistics too."""
    moved = 0.3 * replies.mean(KEY)
    return {**self.inner.server({k: v for k, v in state.items() if k != KEY}, replies, ctx), KEY: state[KEY] + moved}


def _alike(self: Statistics, state: Any, replies: Replies, ctx: Context) -> Any:
    """A fault: the sum in the place of the mean."""
    rest = {k: v for k, v in state.items() if k != KEY}
    return {**self.inner.server(rest, replies, ctx), KEY: state[KEY] + replies.sum(KEY)}


def _any_pass(self: Trail, before: Tensor, after: Tensor) -> None:
    """A fault: passes at a personal model count too."""
    self.descended = self.last = after


FAULTS: dict[str, tuple[type, str, Any]] = {
    "through the method": (Statistics, "server", _through_the_method),
    "summed": (Statistics, "server", _alike),
    "any pass": (Trail, "passed", _any_pass),
    "no pass": (Trail, "passed", lambda *_: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_known_answer_sees_faults(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = made()
    right = tail_of(problem, mean_of(hand(problem, range(3))))
    method = fedloom.Ditto(lr=LR, batch=BATCH, lambda_=0.7)
    assert torch.allclose(run(problem, method).state[KEY], right, rtol=0, atol=1e-12)
    monkeypatch.setattr(*FAULTS[fault])
    assert not torch.allclose(run(problem, method).state[KEY], right, rtol=0, atol=1e-3)
