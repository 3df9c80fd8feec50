"""What a worker does with one stack of clients: the client's half of a round, an evaluation, a measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.channel import Channel, payload
from fedloom.errors import ClientError
from fedloom.federation.client import Client
from fedloom.federation.metrics import Predictions, fidelity, loss_metric, metrics_for
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.methods.method import Method, stateful
from fedloom.types import Memory, Message, State, Vector

Task = dict[str, Any]
"""Arguments of one of the worker's functions: tensors, arrays, numbers and words, or dicts of tensors."""
Result = dict[str, Any]

_EVALUATION_NUMBERS = 16_000_000  # numbers of x that one forward pass of an evaluation reads at a time


@dataclass(frozen=True, eq=False)
class Worker:
    """The problem, the method and the channel, as every process has them; it keeps nothing between calls."""

    problem: Problem
    method: Method
    channel: Channel
    seed: int

    def client(self, shared: Message, task: Task) -> Result:
        """The clients of a stack do their part of a round; the memory that they return is provisional.

        ``task["wire"]`` asks for the replies as they travel, too.

        When a stack fails its clients are tried one by one, to know whose fault it was: the first is named in the
        error, or, if the run is to go on, those who fail are marked and the others' replies taken.
        """
        try:
            return self._client(shared, task)
        except Exception as error:
            if len(task["clients"]) == 1 and not task["drop"]:
                raise self._named(error, task) from error
        alone: list[Result | None] = []
        failures: list[str] = []
        for i in range(len(task["clients"])):
            own = one_client(task, i)
            try:
                alone.append(self._client(shared, own))
            except Exception as error:
                if not task["drop"]:
                    raise self._named(error, own) from error
                alone.append(None)
                failures.append(str(self._named(error, own)))
        return {**joined(alone), "failures": failures}

    def _client(self, shared: Message, task: Task) -> Result:
        ids = task["clients"]
        draw = Draw(self.seed, task["turn"])
        circumstances = {key: task.get(key) for key in ("effort", "budget", "delay", "round", "window")}
        client = self.problem.client(ids, draw, **circumstances)
        received = {**shared, **task.get("unicast", {})}
        task["device"] = client
        memory = self._memory(client, received, task)
        judged = {"fresh": self._test_first(client, task, memory)} if "fresh" in task else {}
        reply, memory = self.method.client(client, received, memory)
        _check_shapes(reply, len(ids))
        wire = self.channel.encode(reply, ids, draw)
        sent, size = self.channel.decode(wire), payload(wire, stacked=True)
        finite = torch.ones(len(ids), dtype=torch.bool)
        for value in (*sent.values(), *memory.values()):
            finite &= finite_rows(value.reshape(len(ids), -1))
        found = {"sent": sent, "memory": memory, "bytes": size, "evaluations": client.evaluations, "finite": finite}
        return found | judged | ({"wire": wire} if task.get("wire") else {})

    def _test_first(self, client: Client, task: Task, memory: Memory) -> Result:
        """What the model that a client would use says of the rows that came since it trained last; and their labels.

        Test, then train: no row has been trained on when it is judged. ``theta`` is that model, for all or one for each
        client; without it, it is the client's own, made from the server's ``state`` and the client's memory.
        """
        theta = task["theta"] if "theta" in task else self.method.personal(client, task["state"], memory)
        fresh = self.problem.client(client.clients, client.draw, window=task["fresh"])
        predictions = self._predict(fresh, theta, "train")
        return {"out": predictions.out, "y": predictions.y, "counts": predictions.counts}

    def _named(self, error: Exception, task: Task) -> ClientError:
        label = self.problem.data.label(int(task["clients"][0]))
        step = task["device"].step if "device" in task else 0
        where = f"round {task['round'] + 1}" + (f", local step {step}" if step else "")
        return ClientError(f"client {label} failed in {where}: {type(error).__name__}: {error}")

    def evaluate(self, shared: State, task: Task) -> Result:
        """Each metric for each client of the stack, with the server's model, the client's own, or an adapted one."""
        ids = task["clients"]
        client = self.problem.client(ids, Draw(self.seed, task["round"]), window=task.get("window"))
        split = task["split"]
        theta = self.models(client, shared, task)
        data, predictions = self.problem.data, self._predict(client, theta, split)
        shown = predictions.original(data.y_scale, torch.from_numpy(ids))
        counted = [(metric, metric.counts(shown)) for metric in metrics_for(data.task, task["metrics"], data.columns)]
        counted += [(loss, loss.counts(predictions)) for loss in (loss_metric(self.problem.loss),)]
        if "reference" in task:
            near = fidelity(self._predict(client, task["reference"], split).out)
            counted.append((near, near.counts(predictions)))
        return {
            "values": {metric.name: metric.value(counts) for metric, counts in counted},
            "sums": {metric.name: counts.sum(0) for metric, counts in counted},
            "counts": predictions.counts,
        }

    def models(self, client: Client, shared: State, task: Task) -> Vector:
        """What each client of the stack would use: the server's model, its own, or one adapted to its rows."""
        which, ids = task["model"], torch.from_numpy(client.clients)
        if "theta" in task:  # what several parties make together
            theta: Vector = task["theta"]
            return theta
        if which == "global":
            return self.method.model(shared)
        own = self.method.unicast(shared, ids)
        received = {**self.method.broadcast(shared, ids), **own}
        theta = self.method.personal(client, shared, self._memory(client, received, {**task, "unicast": own}))
        if which == "personal":
            return theta
        lr, steps, few = task["adapt_lr"], task["adapt_steps"], task["adapt_split"]
        return self.method.adapt(client, shared, theta, lr, steps, few)

    def measure(self, shared: Message, task: Task) -> Result:
        """What the method wants measured on each client of the stack."""
        ids = task["clients"]
        client = self.problem.client(ids, Draw(self.seed, task["round"]), window=task.get("window"))
        received = {**shared, **task.get("unicast", {})}
        return {"values": self.method.measure(client, received, self._memory(client, received, task))}

    def _memory(self, client: Client, received: Message, task: Task) -> Memory:
        """The clients' memory as columns; those that come for the first time make theirs now."""
        if not stateful(self.method):
            return {}
        known = task["known"]
        if "window" in task:
            task = {**task, "memory": self._moved(client, task)}
        if bool(known.all()):
            return dict(task["memory"])
        fresh = ~known
        shared = {key: value for key, value in received.items() if key not in task.get("unicast", {})}
        own = {key: value[fresh] for key, value in task.get("unicast", {}).items()}
        theirs = None if client.window is None else (client.window[0][fresh.numpy()], client.window[1][fresh.numpy()])
        newcomers = self.problem.client(client.clients[fresh.numpy()], client.draw, window=theirs)
        made = self.method.client_init(newcomers, {**shared, **own})
        if bool(fresh.all()):
            return made
        memory = {}
        for key, value in made.items():
            old = task["memory"][key]
            width = max(old.shape[1], value.shape[1]) if old.dim() > 1 else None
            column = old.new_zeros(len(known), *((width, *old.shape[2:]) if width is not None else ()))
            for rows, part in ((known, old), (fresh, value)):
                if width is not None and part.shape[1] < width:
                    part = torch.cat([part, part.new_zeros(len(part), width - part.shape[1], *part.shape[2:])], 1)
                column[rows] = part
            memory[key] = column
        return memory

    def _moved(self, client: Client, task: Task) -> Memory:
        """The memory of known clients with what belongs to single rows beside the rows that they hold now.

        ``moved`` first rows have left each client since; rows that have come since have zeros.
        """
        memory: Memory = dict(task["memory"])
        width = int(client.sizes().max(initial=0))
        known = task["known"]
        moved = torch.from_numpy(task["moved"])[known]
        for key in self.method.per_row:
            if key in memory:
                memory[key] = _beside(memory[key], moved, width)
        return memory

    def _predict(self, client: Client, theta: Vector, split: str) -> Predictions:
        span = client.span(split)
        counts = torch.from_numpy(span.sizes)
        owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
        rows = span.rows()
        y = self.problem.y.index_select(0, rows)
        with torch.no_grad():
            out = self._outputs(theta, rows, counts)
        return Predictions(out, y, owner, counts, self.problem.data.task, self.problem.loss.threshold)

    def _outputs(self, theta: Vector, rows: Tensor, counts: Tensor) -> Tensor:
        """One model for all rows, or one for each client."""
        x = self.problem.x
        if theta.dim() == 1:
            block = max(1, _EVALUATION_NUMBERS // max(1, x[:1].numel()))
            parts = [self.problem.model(theta, x[part]) for part in torch.split(rows, block) if len(part)]
        else:
            own = torch.split(rows, counts.tolist())
            parts = [self.problem.model(one, x[part]) for one, part in zip(theta, own, strict=True) if len(part)]
        return torch.cat(parts) if parts else x.new_zeros(0, self.problem.data.outputs)


def _check_shapes(reply: Message, clients: int) -> None:
    for key, value in reply.items():
        if value.dim() == 0 or len(value) != clients:
            raise ValueError(
                f"the reply {key!r} of a stack of {clients} has shape {tuple(value.shape)}: its first axis must be "
                "the clients"
            )


def _beside(column: Tensor, moved: Tensor, width: int) -> Tensor:
    """Entries of single rows (clients, rows, …), each client's moved to the left, for so many rows; zeros are new."""
    at = torch.arange(width) + moved[:, None]
    inside = at < column.shape[1]
    found = column.new_zeros(len(column), width, *column.shape[2:])
    found[inside] = column[torch.arange(len(column))[:, None].expand_as(at)[inside], at[inside]]
    return found


def finite_rows(rows: Tensor) -> Tensor:
    """Whether all numbers of each row are finite."""
    # A sum is finite only if all its terms are: one pass, no mask of the whole message. Large terms may overflow it.
    if not rows.is_floating_point() or math.isfinite(rows.sum().item()):
        return torch.ones(len(rows), dtype=torch.bool)
    return torch.isfinite(rows).all(1)


def one_client(task: Task, i: int) -> Task:
    """The same task for the i-th client of the stack alone."""
    own = {**task, "clients": task["clients"][i : i + 1]}
    for key in ("effort", "budget", "delay", "moved", "saved"):
        if key in task:
            own[key] = task[key][i : i + 1]
    for key in ("window", "fresh"):
        if key in task:
            own[key] = tuple(part[i : i + 1] for part in task[key])
    if "theta" in task and task["theta"].dim() > 1:
        own["theta"] = task["theta"][i : i + 1]
    if "unicast" in task:
        own["unicast"] = {key: value[i : i + 1] for key, value in task["unicast"].items()}
    if "known" in task:
        own["known"] = task["known"][i : i + 1]
        at = int(task["known"][:i].sum())
        own["memory"] = {key: value[at : at + int(own["known"][0])] for key, value in task["memory"].items()}
    return own


def joined(alone: list[Result | None]) -> Result:
    """Results of single clients as that of a stack; who has none is marked as not finite."""
    found = [result for result in alone if result is not None]
    good = torch.tensor([result is not None for result in alone])

    def column(part: str, key: str) -> Tensor:
        rows: list[Tensor] = [result[part][key][0] for result in found]
        whole = rows[0].new_zeros(len(alone), *(max(row.shape[d] for row in rows) for d in range(rows[0].dim())))
        for at, row in zip(torch.nonzero(good).flatten().tolist(), rows, strict=True):
            whole[(at, *(slice(0, length) for length in row.shape))] = row
        return whole

    finite, evaluations = torch.zeros(len(alone), dtype=torch.bool), np.zeros(len(alone), dtype=np.int64)
    finite[good] = torch.tensor([bool(result["finite"][0]) for result in found], dtype=torch.bool)
    evaluations[good.numpy()] = [result["evaluations"][0] for result in found]
    judged: Result = {}
    if found and "fresh" in found[0]:
        counts = torch.zeros(len(alone), dtype=torch.int64)
        counts[good] = torch.cat([result["fresh"]["counts"] for result in found])
        judged = {"counts": counts} | {key: torch.cat([r["fresh"][key] for r in found]) for key in ("out", "y")}
    return {
        "sent": {key: column("sent", key) for key in found[0]["sent"]} if found else {},
        "memory": {key: column("memory", key) for key in found[0]["memory"]} if found else {},
        "bytes": found[0]["bytes"] if found else 0,
        "evaluations": evaluations,
        "finite": finite,
        **({"fresh": judged} if judged else {}),
    }
