"""A grid in this process: every message is carried as bytes and answered by a node, when the server looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedloom.deploy.node import Node, asks_who

Spoil = Callable[[Message, int], Message | None]
"""What becomes of a reply of the node on its way, given how many the node has sent before; None: it is lost."""


@dataclass
class LocalNode:
    """A node: what it was started with, what Flower keeps for it, and what goes wrong with it."""

    config: dict[str, Any]
    folder: Path
    state: RecordDict = field(default_factory=RecordDict)
    online: bool = True
    spoil: Spoil = lambda message, number: message
    says: Spoil = lambda message, number: message
    """What becomes of what it says of itself."""
    answered: int = 0
    node: Node | None = None
    made: Callable[..., Node] = Node

    def answer(self, message: Message) -> Message | None:
        hello = asks_who(message.content)
        if hello or self.node is None:
            self.node = self.made(self.folder, self.config, self.state)
        reply = Message(self.node.answer(message.content), reply_to=message)
        if hello:
            return self.says(reply, 0)
        self.answered += 1
        return self.spoil(reply, self.answered)


class LocalGrid(Grid):
    """Messages go to nodes in this process."""

    def __init__(self, nodes: Iterable[LocalNode] = ()) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.nodes = {100 + i: node for i, node in enumerate(nodes)}
        self.replies: dict[str, Message] = {}
        self.sent = 0

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [number for number, node in self.nodes.items() if node.online]

    def get_nodes(self) -> Iterable[Any]:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            self.sent += 1
            number = f"{self.sent}"
            node = self.nodes[message.metadata.dst_node_id]
            arrived = carried(message)
            arrived.metadata.__dict__["_message_id"] = number
            arrived.metadata.__dict__["_src_node_id"] = 0
            reply = node.answer(arrived) if node.online else Message(Error(5, "node away"), reply_to=arrived)
            if reply is not None:
                back = carried(reply)
                back.metadata.__dict__["_reply_to_message_id"] = number
                self.replies[number] = back
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(number) for number in message_ids if number in self.replies]


def carried(message: Message) -> Message:
    """The message after it was bytes."""
    if not message.has_content():
        return message
    contents = {number: thing.deflate() for number, thing in get_all_nested_objects(message.content).items()}
    content = inflate_object_from_contents(message.content.object_id, contents)
    assert isinstance(content, RecordDict)
    return make_message(message.metadata, content=content)


def fleet(folder: Path, nodes: int, **spoils: Spoil) -> LocalGrid:
    """A grid of so many nodes of a rehearsal; ``n1=…`` spoils the replies of node 1."""
    made = [LocalNode({"client": i, "state": str(folder / f"node-{i}")}, folder) for i in range(nodes)]
    for name, spoil in spoils.items():
        made[int(name[1:])].spoil = spoil
    return LocalGrid(made)
