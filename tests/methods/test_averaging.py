from __future__ import annotations

from typing import Any

import pytest
import torch

from fedloom.methods import Central, FedAvg, FedSGD, Local
from fedloom.methods.method import Context, Method
from problems import make_problem, replies_of, run, start

F64 = torch.float64


def context(method: Method) -> Context:
    return start(make_problem("linear", dtype=F64), method).context(0)


def test_fedavg_adds_the_mean_of_the_moves() -> None:
    moves = {"dx": torch.tensor([[4.0, 0.0], [0.0, 8.0]])}
    state = {"x": torch.tensor([1.0, 1.0])}
    for method, wanted in ((FedAvg(), [4.0, 3.0]), (FedAvg(weighting="uniform"), [3.0, 5.0])):
        replies = replies_of(method, [1, 4], moves, [3, 1])
        assert method.server(state, replies, context(method))["x"].tolist() == wanted
    assert state["x"].tolist() == [1.0, 1.0]


def test_fedsgd_goes_against_the_mean_gradient() -> None:
    replies = replies_of(FedSGD(), [1, 4], {"g": torch.tensor([[4.0, 0.0], [0.0, 8.0]])}, [3, 1])
    state = {"x": torch.tensor([1.0, 1.0])}
    assert FedSGD(lr=0.5).server(state, replies, context(FedSGD()))["x"].tolist() == [-0.5, 0.0]


@pytest.mark.parametrize("method", [FedAvg(batch=4), FedSGD(), Local(batch=4), Central(batch=4)])
@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_a_client_call_is_the_same_alone_and_in_a_stack(method: Method, model: str) -> None:
    problem = make_problem(model)
    ctx = start(problem, method).context(0)
    state = method.server_init(ctx)
    clients = torch.arange(5)
    received = method.broadcast(state, clients)
    stack = problem.client(clients.numpy(), ctx.draw)
    reply, memory = method.client(stack, received, method.client_init(stack, received))
    for i in range(5):
        one = problem.client(i, ctx.draw)
        alone, own = method.client(one, received, method.client_init(one, received))
        for together, apart in ((reply, alone), (memory, own)):
            assert together.keys() == apart.keys()
            for key, value in apart.items():
                torch.testing.assert_close(together[key][i], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("how", [{"epochs": 2}, {"steps": 3}])
def test_fedavg_passes_its_settings_on(optimiser: Any, how: dict[str, int]) -> None:
    from fedloom.federation.optimisers import local_optimiser

    problem = make_problem("mlp", dtype=F64)
    engine = run(problem, FedAvg(lr=0.05, batch=4, optimiser=optimiser, weighting="uniform", **how), 1)
    client = problem.client(range(5), engine.context(0).draw)
    y, _ = client.sgd(engine.theta0, 0.05, 4, optimiser=local_optimiser(optimiser), **how)
    torch.testing.assert_close(engine.state["x"], y.mean(0), rtol=0, atol=1e-12)


def test_local_sends_nothing() -> None:
    engine = start(make_problem("linear"), Local())
    row = engine.step()
    assert row["bytes_up"] < 5 * 24
    assert engine.evaluator.evaluations[0].model == "personal"
