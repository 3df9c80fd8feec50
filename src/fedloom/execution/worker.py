"""What a worker does with one stack of clients: their part of a round, an evaluation, a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedloom.channel import Channel, Sent, finite_rows, parted
from fedloom.errors import ClientError
from fedloom.execution.work import Evaluate, Evaluated, Measure, Measured, Memories, Test, Tested, Trained, Turn
from fedloom.federation.client import Client
from fedloom.federation.metric import together
from fedloom.federation.metrics import Metric, Predictions, fidelity, loss_metric, metrics_of
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.federation.replies import WEIGHT, weighted
from fedloom.methods.method import Lent, Method, ServerMethod, Wish
from fedloom.types import Memory, Message, State, Vector

_EVALUATION_NUMBERS = 16_000_000  # numbers of x that one forward pass of an evaluation reads at a time


@dataclass(frozen=True, eq=False)
class Worker:
    """The problem, the method and the channel, as every process has them; it keeps nothing between calls."""

    problem: Problem
    method: Method
    channel: Channel
    seed: int
    shows_rows: bool = True
    """Whether an evaluation may tell of single rows what a metric needs of them; a node tells only counts."""

    @property
    def remembers(self) -> bool:
        """Whether clients keep anything between rounds: for the method, or for the channel."""
        return self.method.remembers or self.channel.remembers

    def turn(self, shared: Message, work: Turn) -> Trained:
        """The clients of a stack do their part of a round; what they remember after it holds if the reply is accepted.

        When a stack fails its clients are tried one by one, to know whose fault it was: the first is named in the
        error, or, if the run is to go on, those who fail are marked and the others' replies taken.
        """
        count = len(work.clients)
        try:
            return self._turn(shared, work)
        except ClientError:
            if count == 1 and not work.drop:
                raise
        alone: list[Trained | None] = []
        failures: list[str] = []
        for own in map(work.one, range(count)):
            try:
                alone.append(self._turn(shared, own))
            except ClientError as fault:
                if not work.drop:
                    raise
                alone.append(None)
                failures.append(str(fault))
        return Trained.joined(alone).failing(failures)

    def _turn(self, shared: Message, work: Turn) -> Trained:
        """The turn, or a ClientError that names the first client of the stack and the local step."""
        draw = Draw(self.seed, work.turn)
        how = {"effort": work.effort, "budget": work.budget, "delay": work.delay}
        client = self.problem.client(work.clients, draw, **how, round=work.round, window=work.window)
        try:
            return self._trained(client, {**shared, **work.own}, work)
        except Exception as error:
            label = self.problem.data.label(int(work.clients[0]))
            where = f"round {work.round + 1}" + (f", local step {client.step}" if client.step else "")
            raise ClientError(f"client {label} failed in {where}: {type(error).__name__}: {error}") from error

    def _trained(self, client: Client, received: Message, work: Turn) -> Trained:
        before = self._memory(client, received, work.own, work.memory)
        tested = None if work.test is None else self._test_first(client, work.test, before)
        reply, memory = self.method.turn(client, received, parted(before)[0])
        _check_shapes(reply, len(work.clients))
        sent = self._send(client, reply, work.memory)
        arrived, memory = self.channel.receive(sent.wire), {**memory, **sent.memory}
        finite = torch.ones(len(work.clients), dtype=torch.bool) & arrived.finite & finite_rows(memory)
        if work.memory is not None:
            memory = self._settled(client, memory, self._unweighted(arrived.reply), received, finite)
        wire = sent.wire if work.wire else None
        return Trained(
            arrived.reply, memory, arrived.bytes, client.evaluations, finite, sent.figures, tested, wire=wire
        )

    def _send(self, client: Client, reply: Message, memory: Memories | None) -> Sent:
        """The replies through the clients' half of the channel."""
        method, kept = self.method, dict[str, Tensor]()
        weight, reduce = (method.weight(client), method.reduce) if isinstance(method, ServerMethod) else (None, "sum")
        if memory is not None and self.channel.remembers:
            fresh = ~memory.known
            first = {key: value[fresh] for key, value in reply.items()}
            made = self.channel.start(first, None if weight is None else weight[fresh])
            kept = Memories(memory.known, parted(memory.columns)[1]).with_new(made)
        return self.channel.send(reply, weight, kept, client.clients, client.draw, reduce)

    def _settled(self, client: Client, memory: Memory, sent: Message, inbox: Message, finite: Tensor) -> Memory:
        """What clients remember once their replies are accepted, known as soon as these are decoded: so the server has
        no part in it. A reply that is not finite never is."""
        own, kept = parted(memory)
        if not self.method.remembers:
            return kept
        after = self.problem.client(client.clients, client.draw, round=client.round, window=client.window)
        if not bool(finite.all()):
            own, sent = ({key: value.nan_to_num(0.0, 0.0, 0.0) for key, value in part.items()} for part in (own, sent))
        return {**self.method.settle(after, own, sent, inbox), **kept}

    def _unweighted(self, sent: Message) -> Message:
        """Replies as the server decoded them, without their clients' weights."""
        if WEIGHT not in sent:
            return sent
        bare = {key: value for key, value in sent.items() if key != WEIGHT}
        summed = isinstance(self.method, ServerMethod) and self.method.reduce == "sum"
        return weighted(bare, sent[WEIGHT], undo=True) if summed else bare

    def _test_first(self, client: Client, test: Test, memory: Memory) -> Tested:
        """What the model that a client would use says of the rows that came since it trained last; and their labels.

        Test, then train: no row has been trained on when it is evaluated.
        """
        own = parted(memory)[0]
        state = {**(test.state or {}), **test.own}
        theta = self.method.personal(client, state, own) if test.theta is None else test.theta
        fresh = self.problem.client(client.clients, client.draw, window=test.window)
        predictions = self._predict(fresh, theta, "train")
        return Tested(predictions.counts, predictions.out, predictions.y)

    def evaluate(self, shared: State, work: Evaluate) -> Evaluated:
        """Each metric for each client of the stack, with the server's model, the client's own, or an adapted one."""
        client = self.problem.client(work.clients, Draw(self.seed, work.round), window=work.window)
        data, predictions = self.problem.data, self._predictions(client, shared, work)
        shown = predictions.original(data.y_scale, torch.from_numpy(work.clients))
        shown = replace(shown, decision=work.decision)
        metrics: list[tuple[Metric, Predictions]] = [(metric, shown) for metric in metrics_of(data, work.metrics)]
        metrics.append((loss_metric(self.problem.loss), predictions))
        if work.reference is not None:
            metrics.append((fidelity(self._predict(client, work.reference, work.split).out), predictions))
        values, sums, points = dict[str, Tensor](), dict[str, Tensor](), dict[str, Tensor]()
        for metric, rows in metrics:
            if metric.joined and self.shows_rows:
                values[metric.name], points[metric.name] = metric.values(rows), metric.points(rows)
            else:
                counts = metric.counts(rows)
                values[metric.name], sums[metric.name] = metric.value(counts), counts.sum(0)
        return Evaluated(values, sums, predictions.counts, points)

    def _predictions(self, client: Client, shared: State, work: Evaluate) -> Predictions:
        """What clients' models say of the rows: one model a client, or several that say it together."""
        if work.lent not in ("ensemble", "vote") or work.model == "global" or work.theta is not None:
            return self._predict(client, self.models(client, shared, work), work.split)
        each = (self._predict(client, theta, work.split) for theta in self._several(client, shared, work))
        return together(each, work.lent == "vote")

    def models(self, client: Client, shared: State, work: Evaluate) -> Vector:
        """What each client of the stack would use: the server's model, its own, or one adapted to its rows; with the
        published parts that do best on its few rows, or with the mean of all."""
        if work.theta is not None:  # what several parties make together
            return work.theta
        if work.model == "global" and isinstance(self.method, ServerMethod):
            return self.method.model(shared)
        several = self._several(client, shared, work)
        return self._best(client, several, work.adapt_split or "support") if work.lent == "best" else next(several)

    def _several(self, client: Client, shared: State, work: Evaluate) -> Iterator[Vector]:
        """The models that clients can make: with their own parts, or with each of those that they are shown."""
        method, state = self.method, {**shared, **work.shown}
        memory = parted(self._memory(client, {**work.received, **work.own}, work.own, work.memory))[0]
        for kept in [memory] if work.lent == "own" else method.lent(client, state, memory):
            theta = method.personal(client, state, kept)
            if work.model == "adapted":
                wish = Wish(work.adapt_lr, work.adapt_steps, work.adapt_split or "support")
                theta = method.adapt(client, state, kept, theta, wish)
            yield theta

    def _best(self, client: Client, models: Iterator[Vector], split: str) -> Vector:
        """Of several models that with which each client has the lowest loss on these rows, the first of equals."""
        loss, best, least = loss_metric(self.problem.loss), torch.zeros(0), torch.zeros(0)
        for number, theta in enumerate(models):
            own = loss.value(loss.counts(self._predict(client, theta, split)))
            better = own < least if number else torch.ones_like(own, dtype=torch.bool)
            theta = theta.expand(len(own), -1)
            best = torch.where(better[:, None], theta, best) if number else theta
            least = torch.where(better, own, least) if number else own
        return best

    def measure(self, shared: Message, work: Measure) -> Measured:
        """What the method wants measured on each client of the stack."""
        client = self.problem.client(work.clients, Draw(self.seed, work.round), window=work.window)
        received = {**shared, **work.own}
        memory = parted(self._memory(client, received, work.own, work.memory))[0]
        return Measured(self.method.measure(client, received, memory))

    def _memory(self, client: Client, received: Message, own: Message, memory: Memories | None) -> Memory:
        """The clients' memory as columns; those that come for the first time make theirs now."""
        if memory is None or not self.method.remembers:
            return {}
        if memory.moved is not None:
            memory = self._moved(client, memory)
        fresh = ~memory.known
        if not bool(fresh.any()):
            return dict(memory.columns)
        who, window = fresh.numpy(), client.window
        newcomers = self.problem.client(
            client.clients[who], client.draw, window=None if window is None else (window[0][who], window[1][who])
        )
        theirs = {key: value[fresh] if key in own else value for key, value in received.items()}
        return memory.with_new(self.method.client_init(newcomers, theirs))

    def _moved(self, client: Client, memory: Memories) -> Memories:
        """The memory of known clients with what belongs to single rows beside the rows that they hold now.

        Rows that have come since have zeros.
        """
        assert memory.moved is not None
        width, moved = int(client.sizes().max(initial=0)), torch.from_numpy(memory.moved)[memory.known]
        per_row = [key for key in self.method.per_row if key in memory.columns]
        return Memories(
            memory.known, {**memory.columns, **{key: _beside(memory.columns[key], moved, width) for key in per_row}}
        )

    def _predict(self, client: Client, theta: Vector, split: str) -> Predictions:
        span = client.span(split)
        counts = torch.from_numpy(span.sizes)
        owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
        rows = span.rows()
        y = self.problem.y.index_select(0, rows)
        with torch.no_grad():
            out = self._outputs(theta, rows, counts)
        loss = self.problem.loss
        return Predictions(out, y, owner, counts, self.problem.data.task, loss.threshold, loss.link)

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


def shown_to_all(method: Method, state: State, model: str, lent: Lent = "own") -> State:
    """What every client is shown of the server's state where such models are evaluated: their own, or adapted ones."""
    further = method.shown_to_adapt(state) if model == "adapted" else {}
    return {**method.shown(state, lent), **further}


def asked(method: Method, state: State, work: Evaluate) -> Evaluate:
    """The work with what its clients are shown of the server's state, and with what newcomers among them are sent."""
    ids, memory = torch.from_numpy(work.clients), work.memory
    shown = method.shown_each(state, ids)
    received, own = dict(state), Message()
    if memory is None or bool(memory.known.all()):
        received = {}
    elif isinstance(method, ServerMethod):
        received, own = method.broadcast(state, ids), method.unicast(state, ids)
    return replace(work, shown=shown, received=received, own=own)


def _check_shapes(reply: Message, clients: int) -> None:
    for key, value in reply.items():
        if key == WEIGHT:
            raise ValueError(
                f"the reply has a key {WEIGHT!r}, which stands for what a client counts for; name it otherwise"
            )
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
