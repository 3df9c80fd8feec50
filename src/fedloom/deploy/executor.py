"""The fleet as an executor: every client's task goes to the node that has its rows, and comes back as a reply."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np
import torch
from torch import Tensor

from fedloom.channel import payload
from fedloom.deploy.card import Form, sample
from fedloom.deploy.codec import Tree, encode
from fedloom.deploy.link import Letter
from fedloom.deploy.roster import Roster
from fedloom.deploy.spool import Spool
from fedloom.deploy.terms import Terms
from fedloom.errors import ClientError, FedloomError, MessageError, RunError
from fedloom.execution import Remote, Worker
from fedloom.execution.room import Room
from fedloom.execution.worker import Result, Task, finite_rows, joined, one_client
from fedloom.federation.data import FederatedData
from fedloom.federation.ragged import Ints
from fedloom.types import Message

log = logging.getLogger("flwr")
_KINDS: dict[str, Literal["train", "evaluate", "query"]] = {
    "client": "train",
    "evaluate": "evaluate",
    "measure": "query",
}
_DONE = {"evaluate": "judged", "measure": "measured"}
_SPARE = 16 << 20  # bytes that a reply may have beside its tensors
_FETCHED = 128 << 20  # bytes of replies that are fetched together


class _Inbox:
    """What came of asking some clients, each known by its place among them."""

    def __init__(self, count: int) -> None:
        self.faults = dict.fromkeys(range(count), "")
        """What is wrong with those whose replies are missing."""
        self.waiting: dict[str, int] = {}
        """Whose replies can still come, by the numbers of the messages."""
        self.news: list[str] = []
        """What went wrong and was not told yet."""

    def told(self) -> list[str]:
        """The news, once."""
        news, self.news = self.news, []
        return news


class Fleet(Remote):
    """Real devices. A reply that is missing, late or not what it must be is that client's failure of this round."""

    name = "flower"

    def __init__(self, roster: Roster, terms: Terms) -> None:
        self.roster, self.link, self.terms = roster, roster.link, terms
        self.patience, self.tries = terms.deadline, terms.tries
        self._begun: dict[str, Task] = {}
        self.form: Form | None = None
        """What a reply to a task of training looks like: found with made-up rows before the first one is there …"""
        self.answer: Form | None = None
        """… and one to the evaluation or measurement that is under way."""

    def open(self, worker: Worker) -> None:
        self.worker = worker
        self.roster.save()

    def federation(self, data: FederatedData) -> FederatedData:
        self.roster.look()
        if len(self.roster.cards) == data.clients:
            return data
        self.roster.save()
        return self.roster.data()

    def there(self, candidates: Ints) -> Ints:
        return self._there(candidates, min(self.terms.minimum, len(candidates)))

    def _there(self, candidates: Ints, needed: int) -> Ints:
        """Who of these is there, once they are so many."""
        until = time.monotonic() + self.terms.wait
        while len(found := self.online(candidates)) < needed:
            if time.monotonic() >= until:
                raise RunError(
                    f"{len(found)} nodes are there, {needed} are needed (minimum), and no more came for "
                    f"{self.terms.wait:g} seconds; start nodes, and then the same run again: it goes on"
                )
            self.link.pause()
            self.roster.look()
        return found

    def online(self, candidates: Ints) -> Ints:
        return np.intersect1d(candidates, np.array(self.roster.here(), dtype=np.int64))

    def begin(self, shared: Message, tasks: Sequence[Task]) -> list[str | None]:
        numbers = self.ask("client", shared, tasks)
        self._begun |= {number: task for number, task in zip(numbers, tasks, strict=True) if number is not None}
        return numbers

    def finished(self, numbers: Collection[str]) -> list[tuple[str, Result]]:
        replies = self.link.receive(numbers, self.limit, self.at_once)
        if not replies:
            self.link.pause()
        return [(number, self._judged(self._begun.pop(number), reply)) for number, reply in replies]

    def _judged(self, part: Task, reply: Tree | ClientError) -> Result:
        """A reply to a turn as a result, or what is wrong with it as one."""
        try:
            return joined([self.taken("client", reply)])
        except FedloomError as error:
            return {**joined([None]), "failures": [self._named("client", part, str(error))]}

    def map(self, function: str, shared: Message, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        parts = [one_client(task, i) for task in tasks for i in range(len(task["clients"]))]
        places = [(number, i) for number, task in enumerate(tasks) for i in range(len(task["clients"]))]
        alone: list[dict[int, Result | None]] = [{} for _ in tasks]
        like: Result = {}
        inbox = _Inbox(len(parts))
        for place, result in self._exchange(function, shared, parts, inbox):
            number, i = places[place]
            alone[number][i] = result
            like = like or result or {}
            if len(alone[number]) == len(tasks[number]["clients"]):
                found = [alone[number].pop(i) for i in range(len(tasks[number]["clients"]))]
                whole = joined(found) if function == "client" else _gathered(found, like)
                yield number, {**whole, "failures": inbox.told()}

    def close(self) -> None:
        """Nodes go on without the server; there is nothing to give back."""

    def ask(self, function: str, shared: Message, parts: Sequence[Task]) -> list[str | None]:
        """Sends the tasks of single clients to their nodes; the numbers to ask for replies by, None for who is away."""
        if parts and (function != "client" or self.form is None):
            self._expect(function, self._look_ahead(function, shared, parts[0]))
        tree: Tree = {"function": function, "run": self.roster.run}
        if function == "evaluate" and parts and parts[0]["model"] == "global":  # not all that the server keeps
            shared, tree = {"theta": self.worker.method.model(shared)}, {**tree, "model": True}
        common, online = encode(shared), self.link.nodes()
        nodes = [self.roster.nodes.get(int(part["clients"][0]), -1) for part in parts]
        letters = [
            Letter(node, {**tree, "task": part}, common, _KINDS[function], str(part["round"] + 1))
            for node, part in zip(nodes, parts, strict=True)
            if node in online
        ]
        numbers = iter(self.link.send(letters, self.terms.deadline) if letters else [])
        return [next(numbers) if node in online else None for node in nodes]

    def _exchange(
        self, function: str, shared: Message, parts: Sequence[Task], inbox: _Inbox
    ) -> Iterator[tuple[int, Result | None]]:
        """Asks all, and those who are missing again where the replies are too few; what is there counts.

        The replies with their places as they come, and None at last for those who have none.
        """
        needed = min(self.terms.minimum if function == "client" else 1, len(parts))
        for attempt in range(1, self.terms.tries + 1):
            missing = list(inbox.faults)
            if attempt > 1:
                still = needed - (len(parts) - len(missing))
                self._there(np.array([parts[place]["clients"][0] for place in missing]), still)
            numbers = self.ask(function, shared, [parts[place] for place in missing])
            for place, number in zip(missing, numbers, strict=True):
                inbox.faults[place] = self._named(function, parts[place], "its node is away")
                if number is not None:
                    inbox.waiting[number] = place
                    late = f"no reply within {self.terms.deadline:g} seconds"
                    inbox.faults[place] = self._named(function, parts[place], late)
            yield from self._collect(function, parts, inbox)
            there = len(parts) - len(inbox.faults)
            if there >= needed:
                for place, text in inbox.faults.items():
                    log.warning("%s", text)
                    inbox.news.append(text)
                    yield place, None
                return
            inbox.news.append(f"try {attempt} was void: {there} of {needed} replies that are needed")
            log.warning("%s", inbox.news[-1])
        raise RunError(
            f"{there} of the {needed} replies that are needed (minimum) came in {self.terms.tries} tries: "
            f"{'; '.join([*inbox.news, *inbox.faults.values()])}. See to the nodes, and start the same run again: it "
            "goes on"
        )

    def _collect(self, function: str, parts: Sequence[Task], inbox: _Inbox) -> Iterator[tuple[int, Result]]:
        """The good replies to what was asked, of this try or an earlier one, until the deadline."""
        for number, reply in self.link.wait(inbox.waiting, self.terms.deadline, self.limit, self.at_once):
            place = inbox.waiting.pop(number)
            try:
                result = self.taken(function, reply)
            except FedloomError as error:
                if place in inbox.faults:
                    inbox.faults[place] = self._named(function, parts[place], str(error))
                continue
            if inbox.faults.pop(place, None) is not None:  # and not answered to an earlier try
                yield place, result

    def room(self) -> Room:
        return Spool(Path(self.terms.out), int(self.terms.memory * (1 << 30)))

    @property
    def limit(self) -> int:
        """Bytes that a reply may have."""
        return 2 * self._expected + _SPARE

    @property
    def at_once(self) -> int:
        """Replies that are fetched together."""
        return max(1, _FETCHED // max(1 << 20, self._expected))

    @property
    def _expected(self) -> int:
        """Bytes that a reply will have."""
        return max((form.bytes for form in (self.form, self.answer) if form is not None), default=0)

    def taken(self, function: str, reply: Tree | ClientError) -> Result:
        """What a reply says, if it is one; otherwise an error that says what is wrong with it."""
        if isinstance(reply, ClientError):
            raise reply
        return self._trained(reply) if function == "client" else self._answered(reply)

    def _expect(self, function: str, form: Form | None) -> None:
        """Replies to this function must look like this."""
        if function == "client":
            self.form = form
        else:
            self.answer = form

    def _answered(self, reply: Tree) -> Result:
        """The reply to an evaluation or a measurement."""
        form = Form.of(_flat(reply))
        self.answer = self.answer or form
        if differs := self.answer.differs(form):
            raise MessageError(f"the reply has another form than it must have: {differs}")
        return reply

    def _trained(self, reply: Tree) -> Result:
        """The reply to a task of training, as the engine wants it."""
        wire, evaluations = reply.get("wire"), reply.get("evaluations")
        if not _are_rows(wire) or not isinstance(evaluations, np.ndarray) or evaluations.dtype != np.int64:
            raise MessageError("the reply is no reply to a task of training")
        if evaluations.shape != (1,) or evaluations[0] < 0:
            raise MessageError("the reply does not say how many gradients it took")
        form = Form.of(wire)
        self.form = self.form or form
        if differs := self.form.differs(form):
            raise MessageError(f"the reply has another form than it must have: {differs}")
        try:
            sent = self.worker.channel.decode(wire)
        except (ValueError, RuntimeError, KeyError) as error:
            raise MessageError(f"the reply cannot be decoded: {error}") from None
        if not all(bool(finite_rows(value.reshape(1, -1)).all()) for value in (*wire.values(), *sent.values())):
            raise ClientError("the reply is not finite")
        finite = torch.ones(1, dtype=torch.bool)
        size = payload(wire, stacked=True)
        return {"sent": sent, "memory": {}, "bytes": size, "evaluations": evaluations, "finite": finite}

    def _look_ahead(self, function: str, shared: Message, part: Task) -> Form | None:
        """What a reply will look like: this client's work, done with two made-up rows; None if that cannot be done."""
        worker = self.worker
        problem = worker.problem.on(sample(self.roster.cards[0], worker.problem.dtype))
        task = {**part, "clients": np.zeros(1, dtype=np.int64), "wire": True, "drop": False}
        if "known" in part:
            task |= {"known": torch.zeros(1, dtype=torch.bool), "memory": {}}
        try:
            found = getattr(Worker(problem, worker.method, worker.channel, worker.seed), function)(shared, task)
            return Form.of(found["wire"] if function == "client" else _flat(found))
        except (FedloomError, ValueError, RuntimeError, KeyError, IndexError) as error:
            log.warning("what a reply must look like is unknown until the first is there: %s", error)
            return None

    def _named(self, function: str, part: Task, why: str) -> str:
        label, t = self.roster.cards[int(part["clients"][0])].name, part["round"]
        if function == "client":
            return f"client {label} failed in round {t + 1}: {why}"
        return f"client {label} was not {_DONE[function]} after round {t}: {why}"


def _are_rows(message: Any) -> TypeGuard[Message]:
    """Whether this is a message of one client, as columns of one row."""
    return isinstance(message, dict) and all(
        isinstance(value, Tensor) and value.dim() > 0 and len(value) == 1 for value in message.values()
    )


def _flat(reply: Tree) -> Message:
    """The tensors of a reply to a question, by their paths."""
    flat: Message = {}
    for key, value in reply.items():
        for name, tensor in value.items() if isinstance(value, dict) else [("", value)]:
            if not isinstance(tensor, Tensor):
                raise MessageError("the reply is no reply to this question")
            flat[f"{key}/{name}"] = tensor
    return flat


def _gathered(alone: list[Result | None], like: Result) -> Result:
    """Results of single clients as that of all; who has none counts for nothing, and its values are unknown."""

    def column(blank: Tensor, pick: Callable[[Result], Tensor], unknown: float) -> Tensor:
        return torch.cat([torch.full_like(blank, unknown) if one is None else pick(one) for one in alone])

    def values(name: str) -> Tensor:
        return column(like["values"][name], lambda result: result["values"][name], torch.nan)

    found: Result = {"values": {name: values(name) for name in like["values"]}}
    if "counts" in like:
        found["counts"] = column(like["counts"], lambda result: result["counts"], 0)
        there = [result for result in alone if result is not None]
        found["sums"] = {
            name: sum((r["sums"][name] for r in there), torch.zeros_like(value)) for name, value in like["sums"].items()
        }
    return found
