"""Letters to nodes and their replies, over Flower's grid."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedloom.deploy.codec import Tree, bundle, encode

_PAUSE = 0.3  # seconds between two looks for replies
NONCE = "nonce"
"""The key under which a letter has a number that nobody can guess, and its reply the same number."""
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, DecodeError)
"""What Flower raises for a reply that it cannot put together; what it raises for a lost server is not among these."""


@dataclass(frozen=True)
class Letter:
    """A message to a node, and the nonce that its reply must have."""

    message: Message
    nonce: str
    seconds: float


@dataclass(frozen=True)
class Reply:
    """What came back for a letter: nobody has looked at it yet."""

    nonce: str
    message: Message | None
    """None: Flower could not put it together."""


class Link:
    """The way to the nodes."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._sent: dict[str, tuple[str, float]] = {}
        """The nonces of letters by their numbers, and until when they matter."""
        self._singly = False

    def nodes(self) -> set[int]:
        """The nodes that are there now."""
        return set(self.grid.get_node_ids())

    def send(self, letters: Sequence[Letter]) -> list[str | None]:
        """Sends letters; the numbers to ask for replies by, None for a letter that could not be sent."""
        if not letters:
            return []
        now = time.monotonic()
        numbers = [number or None for number in self.grid.push_messages([letter.message for letter in letters])]
        self._sent = {number: known for number, known in self._sent.items() if known[1] > now}
        for letter, number in zip(letters, numbers, strict=False):
            if number is not None:
                self._sent[number] = (letter.nonce, now + 2 * letter.seconds + _PAUSE)
        return numbers + [None] * (len(letters) - len(numbers))  # too large for Flower: it says so, and sends none

    def expects(self, number: str) -> bool:
        """Whether a reply to this letter was not received yet and can still come."""
        return number in self._sent

    def receive(self, numbers: Collection[str], at_once: int = 1000) -> list[tuple[str, Reply]]:
        """Some of the replies that are there by now, at most ``at_once``, in no order, each once; none: none is."""
        waiting, step = list(numbers), 1 if self._singly else at_once
        for at in range(0, len(waiting), step):
            if found := self._pulled(waiting[at : at + step]):
                return found
        return []

    def _pulled(self, numbers: list[str]) -> list[tuple[str, Reply]]:
        try:
            messages = list(self.grid.pull_messages(numbers))
        except _UNREADABLE:
            if len(numbers) == 1:
                return [(numbers[0], Reply(self._nonce(numbers[0]), None))]
            self._singly = True  # from now on such a reply costs no other
            return [reply for number in numbers for reply in self._pulled([number])]
        found = [(message.metadata.reply_to_message_id, message) for message in messages]
        return [(number, Reply(self._nonce(number), message)) for number, message in found if number in numbers]

    def _nonce(self, number: str) -> str:
        """The nonce that the reply to a letter must have; one that nobody knows if the letter is too old."""
        return self._sent.pop(number, (secrets.token_hex(16), 0.0))[0]

    def wait(
        self,
        numbers: Collection[str],
        seconds: float,
        at_once: int = 1000,
        enough: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[str, Reply]]:
        """The replies as they come, until all are there or so many seconds have passed, or those there are enough."""
        waiting, until = set(numbers), time.monotonic() + seconds
        while waiting:
            found = self.receive(waiting, at_once)
            for number, reply in found:
                waiting.discard(number)
                yield number, reply
            if not found:
                if enough() or time.monotonic() >= until:
                    return
                time.sleep(_PAUSE)

    def pause(self) -> None:
        """Lets some time pass before the next look."""
        time.sleep(_PAUSE)


def letter(
    node: int,
    own: Tree,
    seconds: float,
    shared: RecordDict | None = None,
    agreed: RecordDict | None = None,
    kind: str = "query",
    group: str = "",
) -> Letter:
    """What one node is sent: what is for it alone and, encoded already, what others are sent too and all agreed on.

    It may be answered for so many seconds.
    """
    nonce, nothing = secrets.token_hex(16), RecordDict()
    content = bundle(own=encode({**own, NONCE: nonce}), shared=shared or nothing, agreed=agreed or nothing)
    return Letter(Message(content, dst_node_id=node, message_type=kind, ttl=seconds, group_id=group), nonce, seconds)
