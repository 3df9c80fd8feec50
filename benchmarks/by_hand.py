"""FedAvg as one writes it by hand in torch: the loop that fedloom must beat.

Ordinary code, but nothing is left lying: all data are tensors in memory, a mini-batch is one indexing operation, the
optimiser is made once (plain SGD keeps no state between clients), and the worker processes divide the clients of a
round between them and exchange weights through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from time import perf_counter

import torch
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.workloads import Workload, loss_of, network


class Trainer:
    """A module, its optimiser and the data: trains one client after the other."""

    def __init__(self, workload: Workload, x: Tensor, y: Tensor) -> None:
        self.workload, self.x, self.y = workload, x, y
        self.model = network(workload)
        self.loss = loss_of(workload)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=workload.lr)

    def train(self, client: int) -> None:
        """One local epoch over the client's shuffled rows, from the weights that the module has now."""
        rows = slice(client * self.workload.samples, (client + 1) * self.workload.samples)
        x, y = self.x[rows], self.y[rows]
        for batch in torch.randperm(len(x)).split(self.workload.batch):
            self.optimiser.zero_grad()
            self.loss(self.model(x[batch]), y[batch]).backward()
            self.optimiser.step()


def choose(workload: Workload) -> list[int]:
    """The clients of a round; a permutation of all would cost more than the round when there are many."""
    chosen: set[int] = set()
    while len(chosen) < workload.per_round:
        chosen.update(torch.randint(workload.clients, (workload.per_round - len(chosen),)).tolist())
    return list(chosen)


def one_process(workload: Workload, threads: int) -> Callable[[int], float]:
    """One process with several threads: what runs k rounds and says how many seconds they took."""
    torch.set_num_threads(threads)
    trainer = Trainer(workload, *workload.tensors())
    state = {name: value.clone() for name, value in trainer.model.state_dict().items()}

    def run(rounds: int) -> float:
        nonlocal state
        start = perf_counter()
        for _ in range(rounds):
            total = {name: torch.zeros_like(value) for name, value in state.items()}
            for client in choose(workload):
                trainer.model.load_state_dict(state)
                trainer.train(client)
                for name, value in trainer.model.state_dict().items():
                    total[name].add_(value, alpha=workload.samples / workload.samples_per_round)
            state = total
        return perf_counter() - start

    return run


def _worker(workload: Workload, x: Tensor, y: Tensor, weights: Tensor, total: Tensor, pipe: Connection) -> None:
    torch.set_num_threads(1)
    trainer = Trainer(workload, x, y)
    parameters = list(trainer.model.parameters())
    with suppress(EOFError):  # the parent is done
        while True:
            clients = pipe.recv()
            total.zero_()
            for client in clients:
                theta = weights.clone()
                vector_to_parameters(theta, parameters)  # the parameters are now views of theta
                trainer.train(client)
                total.add_(theta, alpha=workload.samples / workload.samples_per_round)
            pipe.send(len(clients))


def worker_processes(workload: Workload, workers: int) -> Callable[[int], float]:
    """Persistent worker processes with one thread each, data and weights in shared memory."""
    torch.set_num_threads(1)
    x, y = (tensor.share_memory_() for tensor in workload.tensors())
    weights = parameters_to_vector(network(workload).parameters()).detach().share_memory_()
    totals = torch.zeros(workers, len(weights)).share_memory_()
    context = mp.get_context("spawn")
    pipes = []
    for total in totals:
        ours, theirs = context.Pipe()
        context.Process(target=_worker, args=(workload, x, y, weights, total, theirs), daemon=True).start()
        pipes.append(ours)

    def run(rounds: int) -> float:
        start = perf_counter()
        for _ in range(rounds):
            clients = choose(workload)
            for worker, pipe in enumerate(pipes):
                pipe.send(clients[worker::workers])
            for pipe in pipes:
                pipe.recv()
            torch.sum(totals, 0, out=weights)
        return perf_counter() - start

    return run
