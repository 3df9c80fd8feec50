"""A round of ResNet-8 with BatchNorm against the loop that one writes by hand for the same network, in the same run."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import nn

import fedloom
from fedloom.engine.rounds import Rounds
from fedloom.engine.setting import Setting
from fedloom.execution import Serial, one_thread
from fedloom.execution.executor import keep_buffers
from fedloom.federation.ragged import Ragged
from fedloom.storage.store import MemoryStore

NAME = "RESNET"
MOST = 1.1
"""How many times the loop written by hand it may take."""
CLIENTS, ROWS, BATCH, LR = 2, 96, 32, 0.05
MODEL, SHAPE = "resnet8", (3, 32, 32)


def problem() -> fedloom.Problem:
    """Random rows."""
    random = torch.Generator().manual_seed(1)
    total = CLIENTS * ROWS
    x, y = torch.randn(total, *SHAPE, generator=random), torch.randint(10, (total,), generator=random)
    none = torch.zeros(CLIENTS, dtype=torch.int64)
    splits = {"train": Ragged.contiguous(none + ROWS), "test": Ragged.contiguous(none)}
    data = fedloom.FederatedData(NAME, x, y, "classification", splits, classes=tuple("0123456789"))
    return fedloom.Problem(data, fedloom.build_model(MODEL, data))


def by_hand(same: fedloom.Problem, layout: torch.memory_format) -> Callable[[], None]:
    """A round of FedAvg as one writes it in torch, statistics and all, with images in one of the two layouts."""
    module, loss = same.model.built().to(memory_format=layout).train(), nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(module.parameters(), lr=LR)
    x, y = same.x.contiguous(memory_format=layout), same.y
    state = {name: value.clone() for name, value in module.state_dict().items()}

    def step() -> None:
        nonlocal state
        total = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in state.items()}
        for client in range(CLIENTS):
            module.load_state_dict(state)
            for batch in (torch.randperm(ROWS) + client * ROWS).split(BATCH):
                optimiser.zero_grad()
                loss(module(x[batch]), y[batch]).backward()
                optimiser.step()
            for name, value in module.state_dict().items():
                total[name].add_(value, alpha=1 / CLIENTS)
        state = total

    return step


def race(repeats: int = 12) -> dict[str, Any]:
    """A round of each in turn, so many times; the ratio is that of the best times, to the better loop."""
    keep_buffers()  # as every executor does
    same = problem()
    setting = Setting.of(same, fedloom.FedAvg(lr=LR, batch=BATCH), evaluate=())
    with one_thread(), MemoryStore() as store:
        engine = Rounds(setting, Serial(), store)
        kinds: dict[str, Callable[[], Any]] = {
            "fedloom": engine.step,
            "by hand": by_hand(same, torch.contiguous_format),
            "by hand, channels last": by_hand(same, torch.channels_last),
        }
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(repeats + 1):
            for kind, work in kinds.items():
                start = perf_counter()
                work()
                times[kind].append(perf_counter() - start)
    best = {kind: min(seconds[1:]) for kind, seconds in times.items()}
    hand = min(seconds for kind, seconds in best.items() if kind != "fedloom")
    title = f"{MODEL} with BatchNorm, {CLIENTS} clients of {ROWS} rows"
    return {"title": title, "seconds": best, "ratio": best["fedloom"] / hand, "most": MOST, "repeats": repeats}


def sentence(figures: dict[str, Any]) -> str:
    """The result as a line of text."""
    return (
        f"{NAME} on {figures['title']}: a round takes {figures['ratio']:.2f} of the time of the loop written by hand "
        f"(at most {figures['most']})."
    )
