"""The fleet as an executor: every client's task goes to the node that has its rows, and comes back as a reply."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.deploy import reading
from fedloom.deploy.card import sample
from fedloom.deploy.codec import Tree, encode
from fedloom.deploy.link import Reply, letter
from fedloom.deploy.node import THETA, without_failures
from fedloom.deploy.roster import Roster
from fedloom.deploy.standing import Standing
from fedloom.deploy.terms import Terms
from fedloom.errors import FedloomError, RunError
from fedloom.execution import Remote, Worker
from fedloom.execution.room import Room
from fedloom.execution.work import Evaluate, Memories, Trained, Turn, Work, as_tree
from fedloom.federation.data import FederatedData
from fedloom.federation.metrics import fidelity, loss_metric, metrics_of
from fedloom.federation.ragged import Ints
from fedloom.federation.randomness import Draw
from fedloom.methods.method import ServerMethod
from fedloom.types import Message

log = logging.getLogger("flwr")
_KINDS = {"turn": "train", "evaluate": "evaluate", "measure": "query"}
"""What Flower calls messages with each kind of work."""
_SPARE = 16 << 20  # bytes that a reply may have beside its tensors
_FETCHED = 128 << 20  # bytes of replies that are fetched together
_UNKNOWN = (FedloomError, ValueError, RuntimeError, KeyError, IndexError)
"""What a method may raise where it is given made-up rows, or none: then nobody knows what would come of true ones."""


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
        self.standing = Standing(terms.strikes, terms.pause)
        self._begun: dict[str, Turn] = {}
        self._late: dict[str, int] = {}
        """The letters that were not answered in time, and to whom."""
        self.like: dict[str, Message] = {}
        """What a reply to each kind of work looks like: found with made-up rows, or the first that was there."""

    def open(self, worker: Worker) -> None:
        self.worker = replace(worker, shows_rows=False)  # it does what nodes do, to know what replies look like
        self._problem = worker.problem
        self.roster.save()

    def federation(self, data: FederatedData) -> FederatedData:
        self.roster.look()
        if len(self.roster.cards) == data.clients and not self.roster.replaced:
            return data
        self.roster.replaced = False
        self.roster.save()
        return self.roster.data()

    def there(self, candidates: Ints) -> Ints:
        return self._there(candidates, min(self.terms.minimum, len(candidates)))

    def _there(self, candidates: Ints, needed: int) -> Ints:
        """Who of these is there, once they are so many."""
        until = time.monotonic() + self.terms.wait
        while len(found := self.online(candidates)) < needed:
            if len(every := self._of(candidates, self.roster.here())) >= needed:
                return every  # who is left out is asked before the run waits for others, or stops
            if time.monotonic() >= until:
                raise RunError(
                    f"{len(found)} nodes are there, {needed} are needed (minimum), and no more came for "
                    f"{self.terms.wait:g} seconds; start nodes, and then the same run again: it goes on"
                )
            self.link.pause()
            self.roster.look()
        return found

    def online(self, candidates: Ints) -> Ints:
        here = self.roster.here()
        good = [client for client in here if not self.standing.left_out(client)]
        return self._of(candidates, good if len(good) >= self.terms.minimum else here)

    @staticmethod
    def _of(candidates: Ints, there: list[int]) -> Ints:
        return np.intersect1d(candidates, np.array(there, dtype=np.int64))

    def begin(self, shared: Message, works: Sequence[Turn]) -> list[str | None]:
        numbers = self.ask(shared, works)
        self._begun |= {number: work for number, work in zip(numbers, works, strict=True) if number is not None}
        return numbers

    def finished(self, numbers: Collection[str]) -> list[tuple[str, Trained]]:
        for number in self._begun.keys() - set(numbers):  # nobody waits any more for these
            self._miss(self._begun.pop(number), number)
        self._hear_of_the_late()
        replies = self.link.receive(numbers, self.at_once)
        if not replies:
            self.link.pause()
        return [(number, self._trained(self._begun.pop(number), reply)) for number, reply in replies]

    def _trained(self, part: Turn, reply: Reply) -> Trained:
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
                letters.append(letter(node, own, self.terms.deadline, common, self.roster.carried, **how))
        numbers = iter(self.link.send(letters))
        return [next(numbers) if node in online else None for node in nodes]

    def _exchange(self, shared: Message, parts: Sequence[Work], inbox: _Inbox) -> Iterator[tuple[int, Any]]:
        """Asks all, and those who are missing again where the replies are too few; what is there counts.

        The replies with their places as they come, and None at last for those who have none.
        """
        needed = min(self.terms.minimum if parts and isinstance(parts[0], Turn) else 1, len(parts))
        self._hear_of_the_late()
        out = self._left_out(parts, needed)
        for place in out:
            inbox.faults[place] = self._named(parts[place], self.standing.why(int(parts[place].clients[0])))
        for attempt in range(1, self.terms.tries + 1):
            missing = [place for place in inbox.faults if attempt > 1 or place not in out]
            if attempt > 1:
                still = needed - (len(parts) - len(missing))
                self._there(np.array([parts[place].clients[0] for place in missing]), still)
            numbers = self.ask(shared, [parts[place] for place in missing])
            for place, number in zip(missing, numbers, strict=True):
                inbox.faults[place] = self._named(parts[place], "its node is away")
                if number is not None:
                    inbox.waiting[number] = place
                    late = f"no reply within {self.terms.deadline:g} seconds"
                    if int(parts[place].clients[0]) in self.standing.silent:
                        late = "still no reply; it missed an earlier deadline, and nobody waits for it alone"
                    inbox.faults[place] = self._named(parts[place], late)
            yield from self._collect(parts, inbox, needed)
            for place, number in zip(missing, numbers, strict=True):
                if number in inbox.waiting and place in inbox.faults:
                    self._miss(parts[place], number)
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

    def _left_out(self, parts: Sequence[Work], needed: int) -> set[int]:
        """The places of those who are left out; nobody is where the others would be too few."""
        online = self.link.nodes()
        out = {place for place, part in enumerate(parts) if self.standing.left_out(int(part.clients[0]))}
        others = [
            part
            for place, part in enumerate(parts)
            if place not in out and self.roster.nodes.get(int(part.clients[0]), -1) in online
        ]
        return out if len(others) >= needed else set()

    def _miss(self, part: Work, number: str) -> None:
        """A client's reply did not come in time."""
        client = int(part.clients[0])
        self.standing.missed(client)
        self._doubt(client)
        self._late[number] = client

    def _hear_of_the_late(self) -> None:
        """Who missed a deadline is waited for again once its reply has come after all."""
        self._late = {number: client for number, client in self._late.items() if self.link.expects(number)}
        for number, reply in self.link.receive(self._late, self.at_once):
            if reply.message is not None and reply.message.has_content():
                self.standing.silent.discard(self._late[number])

    def _collect(self, parts: Sequence[Work], inbox: _Inbox, needed: int) -> Iterator[tuple[int, Any]]:
        """The good replies to what was asked, of this try or an earlier one, until the deadline.

        For those who missed the last one nobody waits longer than for the others, unless they are needed.
        """
        awaited = {n for n, place in inbox.waiting.items() if int(parts[place].clients[0]) not in self.standing.silent}

        def enough() -> bool:
            there = len(parts) - len(inbox.faults)
            return bool(awaited) and not awaited & inbox.waiting.keys() and there >= needed

        for number, reply in self.link.wait(inbox.waiting, self.terms.deadline, self.at_once, enough):
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

    def taken(self, part: Work, reply: Reply) -> Any:
        """What a reply says, if it is one; otherwise a ClientError that says what is wrong with it."""
        client = int(part.clients[0])
        try:
            found = reading.read(reply, self.limit, lambda tree: self._valid(part, tree))
        except FedloomError:
            if reply.message is None or reply.message.has_content():
                self.standing.failed(client)
            else:  # it is Flower that says so: the node is gone
                self.standing.missed(client)
            self._doubt(client)
            raise
        self.standing.replied(client)
        return found

    def _doubt(self, client: int) -> None:
        """A client has failed: unless replies of it were taken before, it may be another's name that its node has."""
        if client not in self.standing.trusted:
            self.roster.give_way(client)

    def _valid(self, part: Work, tree: Tree) -> Any:
        """The reply to a work, all of it checked."""
        like, card = self.like.get(part.kind), self.roster.cards[int(part.clients[0])]
        found: Any
        if isinstance(part, Turn):
            method = self.worker.method
            sums = isinstance(method, ServerMethod) and method.reduce == "sum"
            found = reading.trained(tree, self.worker.channel, like, self._weight(part), sums, self.terms)
        elif isinstance(part, Evaluate):
            data = self.worker.problem.data
            metrics = [*metrics_of(data, part.metrics), loss_metric(self.worker.problem.loss)]
            metrics += [] if part.reference is None else [fidelity(part.reference)]
            labels = max(1, len(data.columns))
            found = reading.evaluated(tree, metrics, card.sizes[part.split], labels, like, self.terms)
        else:
            found = reading.measured(tree, card.sizes["train"], like, self.terms)
        if like is None:
            self.like[part.kind] = reading.form(tree)
        return found

    def _weight(self, part: Turn) -> Tensor | None:
        """What a client's reply counts for, as far as it follows from the numbers of its rows; None: nobody knows."""
        method, data = self.worker.method, self.roster.data()
        if not isinstance(method, ServerMethod):
            return None
        if self._problem.data is not data:
            self._problem = self.worker.problem.on(data)
        try:
            return method.weight(
                self._problem.client(part.clients, Draw(self.worker.seed, part.turn), round=part.round)
            )
        except _UNKNOWN:
            return None

    def _look_ahead(self, shared: Message, part: Work) -> None:
        """Finds what a reply will look like: this client's work, done with two made-up rows, if that can be done."""
        self.like.pop(part.kind, None)
        worker = self.worker
        problem = worker.problem.on(sample(self.roster.cards[0], worker.problem.dtype))
        changes: dict[str, Any] = {"clients": np.zeros(1, dtype=np.int64)}
        if isinstance(part, Evaluate):  # which model it is that is evaluated does not matter
            changes |= {"theta": torch.zeros(problem.model.n, dtype=problem.dtype), "lent": "own"}
        else:
            shared = worker.channel.take_down(shared)
            changes["own"] = worker.channel.take_down(part.own, stacked=True)  # type: ignore[attr-defined]
        if isinstance(part, Turn):
            changes |= {"wire": True, "drop": False}
        if part.memory is not None and not isinstance(part, Evaluate):  # type: ignore[attr-defined]
            changes["memory"] = Memories(torch.zeros(1, dtype=torch.bool))
        try:
            found: Any = replace(part, **changes).done_by(replace(worker, problem=problem), shared)
            trained = isinstance(found, Trained)
            tree = {"wire": found.wire or {}, "figures": found.figures} if trained else without_failures(found)
            self.like[part.kind] = reading.form(tree)
        except _UNKNOWN as error:
            log.warning("what a reply must look like is unknown until the first is there: %s", error)

    def _named(self, part: Work, why: str) -> str:
        label, t = self.roster.cards[int(part.clients[0])].name, part.round
        if isinstance(part, Turn):
            return f"client {label} failed in round {t + 1}: {why}"
        return f"client {label} was not {part.kind}d after round {t}: {why}"
