"""Letters to nodes and their replies, over Flower's grid."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedloom.deploy.codec import LIMIT, Tree, bundle, decode, encode
from fedloom.errors import ClientError, MessageError

_PAUSE = 0.3  # seconds between two looks for replies


class Link:
    """The way to the nodes. A reply that is not what it must be is an error in the place of the reply."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def nodes(self) -> set[int]:
        """The nodes that are there now."""
        return set(self.grid.get_node_ids())

    def send(self, letters: Sequence[Message]) -> list[str | None]:
        """Sends letters; the numbers to ask for replies by, None for a letter that could not be sent."""
        return [number or None for number in self.grid.push_messages(letters)] if letters else []

    def receive(
        self, numbers: Collection[str], limit: int = LIMIT, at_once: int = 1000
    ) -> list[tuple[str, Tree | ClientError]]:
        """Some of the replies that are there by now, at most ``at_once``, in no order, each once; none: none is."""
        waiting = list(numbers)
        for at in range(0, len(waiting), at_once):
            if messages := list(self.grid.pull_messages(waiting[at : at + at_once])):
                return [(message.metadata.reply_to_message_id, _read(message, limit)) for message in messages]
        return []

    def wait(
        self, numbers: Collection[str], seconds: float, limit: int = LIMIT, at_once: int = 1000
    ) -> Iterator[tuple[str, Tree | ClientError]]:
        """The replies as they come, until all are there or so many seconds have passed."""
        waiting, until = set(numbers), time.monotonic() + seconds
        while waiting:
            found = self.receive(waiting, limit, at_once)
            for number, reply in found:
                waiting.discard(number)
                yield number, reply
            if not found:
                if time.monotonic() >= until:
                    return
                time.sleep(_PAUSE)

    def pause(self) -> None:
        """Lets some time pass before the next look."""
        time.sleep(_PAUSE)


def letter(
    node: int, own: Tree, seconds: float, shared: RecordDict | None = None, kind: str = "query", group: str = ""
) -> Message:
    """What one node is sent: what is for it alone and, encoded already, what others are sent too.

    It may be answered for so many seconds.
    """
    content = bundle(own=encode(own), shared=RecordDict() if shared is None else shared)
    return Message(content, dst_node_id=node, message_type=kind, ttl=seconds, group_id=group)


def _read(message: Message, limit: int) -> Tree | ClientError:
    if not message.has_content():
        return ClientError(f"Flower says: {message.error.reason or 'no reply'} (code {message.error.code})")
    try:
        tree = decode(message.content, limit)
    except MessageError as error:
        return MessageError(f"the reply cannot be read: {error}")
    return ClientError(str(tree["error"])[:2000]) if "error" in tree else tree
