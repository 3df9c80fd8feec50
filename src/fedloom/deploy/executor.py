"""The fleet as an executor: every client's task goes to the node that has its rows, and comes back as a reply."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from fedloom.channel import finite_rows
from fedloom.deploy.card import refuse_other_form, sample
from fedloom.deploy.codec import Tree, encode
from fedloom.deploy.link import letter
from fedloom.deploy.node import THETA, without_failures
from fedloom.deploy.roster import Roster
from fedloom.deploy.terms import Terms
from fedloom.errors import ClientError, FedloomError, MessageError, RunError
from fedloom.execution import Remote, Worker
from fedloom.execution.room import Room
from fedloom.execution.work import Evaluate, Evaluated, Measured, Memories, Trained, Turn, Work, as_tree
from fedloom.federation.data import FederatedData
from fedloom.federation.ragged import Ints
from fedloom.methods.method import ServerMethod
from fedloom.types import Message

log = logging.getLogger("flwr")
_KINDS = {"turn": "train", "evaluate": "evaluate", "measure": "query"}
"""What Flower calls messages with each kind of work."""
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
        self._begun: dict[str, Turn] = {}
        self.like: dict[str, Message] = {}
        """What a reply to each kind of work looks like: found with made-up rows, or the first that was there."""

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

    def begin(self, shared: Message, works: Sequence[Turn]) -> list[str | None]:
        numbers = self.ask(shared, works)
        self._begun |= {number: work for number, work in zip(numbers, works, strict=True) if number is not None}
        return numbers

    def finished(self, numbers: Collection[str]) -> list[tuple[str, Trained]]:
        self._begun = {number: self._begun[number] for number in numbers}  # nobody waits any more for the others
        replies = self.link.receive(numbers, self.limit, self.at_once)
        if not replies:
            self.link.pause()
        return [(number, self._trained(self._begun.pop(number), reply)) for number, reply in replies]

    def _trained(self, part: Turn, reply: Tree | ClientError) -> Trained:
        """A reply to a turn as a result, or what is wrong with it as one."""
        try:
            return Trained.joined([self.taken(part, reply)])
        except FedloomError as error:
            return Trained.joined([None]).failing([self._named(part, str(error))])

    def map(self, shared: Message, works: Sequence[Work]) -> Iterator[tuple[int, Any]]:
        places = [(number, i) for number, work in enumerate(works) for i in range(len(work.clients))]
        parts = [works[number].one(i) for number, i in places]
        alone: list[dict[int, Any]] = [{} for _ in works]
        like: Any = None
        inbox = _Inbox(len(parts))
        for place, result in self._exchange(shared, parts, inbox):
            number, i = places[place]
            alone[number][i] = result
            like = like or result
            if len(alone[number]) == len(works[number].clients):
                found = [alone[number].pop(i) for i in range(len(works[number].clients))]
                yield number, like.joined(found, like).failing(inbox.told())

    def close(self) -> None:
        """Nodes go on without the server; there is nothing to give back."""

    def ask(self, shared: Message, parts: Sequence[Work]) -> list[str | None]:
        """Sends the work of single clients to their nodes; the numbers to ask for replies by, None for who is away."""
        if parts and not (isinstance(parts[0], Turn) and Turn.kind in self.like):
            self._look_ahead(shared, parts[0])
        method = self.worker.method
        if parts and isinstance(parts[0], Evaluate) and parts[0].model == "global" and isinstance(method, ServerMethod):
            shared = {THETA: method.model(shared)}
        common, online = encode(shared), self.link.nodes()
        nodes = [self.roster.nodes.get(int(part.clients[0]), -1) for part in parts]
        letters = []
        for node, part in zip(nodes, parts, strict=True):
            if node in online:
                own = {"function": "work", "run": self.roster.run, "work": as_tree(part)}
                how = {"kind": _KINDS[part.kind], "group": str(part.round + 1)}
                letters.append(letter(node, own, self.terms.deadline, common, **how))
        numbers = iter(self.link.send(letters))
        return [next(numbers) if node in online else None for node in nodes]

    def _exchange(self, shared: Message, parts: Sequence[Work], inbox: _Inbox) -> Iterator[tuple[int, Any]]:
        """Asks all, and those who are missing again where the replies are too few; what is there counts.

        The replies with their places as they come, and None at last for those who have none.
        """
        needed = min(self.terms.minimum if parts and isinstance(parts[0], Turn) else 1, len(parts))
        for attempt in range(1, self.terms.tries + 1):
            missing = list(inbox.faults)
            if attempt > 1:
                still = needed - (len(parts) - len(missing))
                self._there(np.array([parts[place].clients[0] for place in missing]), still)
            numbers = self.ask(shared, [parts[place] for place in missing])
            for place, number in zip(missing, numbers, strict=True):
                inbox.faults[place] = self._named(parts[place], "its node is away")
                if number is not None:
                    inbox.waiting[number] = place
                    late = f"no reply within {self.terms.deadline:g} seconds"
                    inbox.faults[place] = self._named(parts[place], late)
            yield from self._collect(parts, inbox)
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

    def _collect(self, parts: Sequence[Work], inbox: _Inbox) -> Iterator[tuple[int, Any]]:
        """The good replies to what was asked, of this try or an earlier one, until the deadline."""
        for number, reply in self.link.wait(inbox.waiting, self.terms.deadline, self.limit, self.at_once):
            place = inbox.waiting.pop(number)
            try:
                result = self.taken(parts[place], reply)
            except FedloomError as error:
                if place in inbox.faults:
                    inbox.faults[place] = self._named(parts[place], str(error))
                continue
            if inbox.faults.pop(place, None) is not None:  # and not answered to an earlier try
                yield place, result

    def room(self) -> Room:
        return Room(Path(self.terms.out), self.terms.memory * (1 << 30))

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
        return max((sum(tensor.nbytes for tensor in like.values()) for like in self.like.values()), default=0)

    def taken(self, part: Work, reply: Tree | ClientError) -> Any:
        """What a reply says, if it is one; otherwise an error that says what is wrong with it."""
        if isinstance(reply, ClientError):
            raise reply
        if isinstance(part, Turn):
            return self._replied(part, reply)
        try:
            found = Evaluated(**reply) if isinstance(part, Evaluate) else Measured(**reply)
        except TypeError:
            raise MessageError("the reply is no reply to this question") from None
        self._refuse_other(part, _flat(reply))
        return found

    def _refuse_other(self, part: Work, reply: Message) -> None:
        """MessageError for a reply to a work of this kind that looks otherwise than all others."""
        refuse_other_form(self.like.setdefault(part.kind, _blank(reply)), reply)

    def _replied(self, part: Turn, reply: Tree) -> Trained:
        """The reply to a turn, as the engine wants it."""
        wire, evaluations, figures = reply.get("wire"), reply.get("evaluations"), reply.get("figures", {})
        if not _are_rows(wire) or not isinstance(evaluations, np.ndarray) or evaluations.dtype != np.int64:
            raise MessageError("the reply is no reply to a turn")
        if not _are_rows(figures):
            raise MessageError("the reply's figures are no numbers")
        if evaluations.shape != (1,) or evaluations[0] < 0:
            raise MessageError("the reply does not say how many gradients it took")
        self._refuse_other(part, _whole(wire, figures))
        try:
            arrived = self.worker.channel.receive(wire)
        except (ValueError, RuntimeError, KeyError) as error:
            raise MessageError(f"the reply cannot be decoded: {error}") from None
        if not bool(finite_rows(wire).all() and arrived.finite.all()):
            raise ClientError("the reply is not finite")
        finite = torch.ones(1, dtype=torch.bool)
        return Trained(arrived.reply, {}, arrived.bytes, evaluations, finite, figures)

    def _look_ahead(self, shared: Message, part: Work) -> None:
        """Finds what a reply will look like: this client's work, done with two made-up rows, if that can be done."""
        self.like.pop(part.kind, None)
        worker = self.worker
        problem = worker.problem.on(sample(self.roster.cards[0], worker.problem.dtype))
        changes: dict[str, Any] = {"clients": np.zeros(1, dtype=np.int64)}
        if not isinstance(part, Evaluate):
            shared = worker.channel.take_down(shared)
            changes["own"] = worker.channel.take_down(part.own, stacked=True)  # type: ignore[attr-defined]
        if isinstance(part, Turn):
            changes |= {"wire": True, "drop": False}
        if part.memory is not None:  # type: ignore[attr-defined]
            changes["memory"] = Memories(torch.zeros(1, dtype=torch.bool))
        try:
            found: Any = replace(part, **changes).done_by(replace(worker, problem=problem), shared)
            whole = (
                _whole(found.wire or {}, found.figures)
                if isinstance(found, Trained)
                else _flat(without_failures(found))
            )
            self.like[part.kind] = _blank(whole)
        except (FedloomError, ValueError, RuntimeError, KeyError, IndexError) as error:
            log.warning("what a reply must look like is unknown until the first is there: %s", error)

    def _named(self, part: Work, why: str) -> str:
        label, t = self.roster.cards[int(part.clients[0])].name, part.round
        if isinstance(part, Turn):
            return f"client {label} failed in round {t + 1}: {why}"
        return f"client {label} was not {part.kind}d after round {t}: {why}"


def _are_rows(message: Any) -> TypeGuard[Message]:
    """Whether this is a message of one client, as columns of one row."""
    return isinstance(message, dict) and all(
        isinstance(value, Tensor) and value.dim() > 0 and len(value) == 1 for value in message.values()
    )


def _blank(message: Message) -> Message:
    """A message that looks the same and holds no numbers."""
    return {key: value.to("meta") for key, value in message.items()}


def _whole(wire: Message, figures: Message) -> Message:
    """All that has to have a certain form in a reply to a turn."""
    return wire | {f"figures/{name}": figure for name, figure in figures.items()}


def _flat(reply: Tree) -> Message:
    """The tensors of a reply to a question, by their paths."""
    flat: Message = {}
    for key, value in reply.items():
        for name, tensor in value.items() if isinstance(value, dict) else [("", value)]:
            if not isinstance(tensor, Tensor):
                raise MessageError("the reply is no reply to this question")
            flat[f"{key}/{name}"] = tensor
    return flat
