"""The memory of a server whose nodes' replies exceed it: one round, 200 replies of 10 million parameters."""

from __future__ import annotations

import json
import logging
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

NAME = "FLEET"
NODES, PARAMETERS = 200, 10_003_135
MOST_MB = 2048
"""What the server may take."""
EXPERIMENT = f"""
rounds = 1
[data]
name = "digits"
clients = {NODES}
[model]
name = "mlp"
hidden = [3125, 3125]
[method]
name = "fedavg"
steps = 1
[selection]
name = "all"
[evaluation]
every = 0
[execution]
stack = 1
executor = "serial"
"""


def race() -> dict[str, Any]:
    """One round in a process of its own."""
    done = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def sentence(figures: dict[str, Any]) -> str:
    """The result in words."""
    return (
        f"{NAME}: the server takes {figures['nodes']} replies of {figures['parameters']:,} parameters "
        f"({figures['reply_gb']:.1f} GB) with {figures['peak_mb']:,.0f} MB (at most {figures['most_mb']:,})."
    )


def main() -> None:
    """The server, with nodes in the same process that answer when the server looks for their replies."""
    from flwr.app import Message
    from flwr.app.message import make_message
    from flwr.serverapp import Grid
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supercore.task_identity import TaskIdentity

    from fedloom.deploy import Terms, serve
    from fedloom.deploy.node import Node
    from fedloom.experiment import Experiment

    class InThisProcess(Grid):
        """Messages are answered when somebody asks for the reply, which is made of its bytes as on arrival."""

        def __init__(self, folder: Path) -> None:
            TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
            self.folder, self.letters = folder, dict[str, Message]()

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            numbers = []
            for message in messages:
                numbers.append(str(len(self.letters)))
                self.letters[numbers[-1]] = message
            return numbers

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            return [self._reply(number) for number in message_ids]

        def _reply(self, number: str) -> Message:
            message = self.letters[number]
            message.metadata.__dict__["_message_id"] = number
            message.metadata.__dict__["_src_node_id"] = 0
            client = message.metadata.dst_node_id - 100
            answer = Node(self.folder, {"client": client}, message.content).answer(message.content)
            contents = {key: thing.deflate() for key, thing in get_all_nested_objects(answer).items()}
            arrived: Any = inflate_object_from_contents(answer.object_id, contents)
            reply = make_message(Message(arrived, reply_to=message).metadata, content=arrived)
            reply.metadata.__dict__["_reply_to_message_id"] = number
            return reply

        def get_node_ids(self) -> Iterable[int]:
            return range(100, 100 + NODES)

        def _never(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        set_run = create_message = send_and_receive = get_nodes = _never
        run = property(_never)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "experiment.toml").write_text(EXPERIMENT)
        started = perf_counter()
        terms = Terms(out=str(folder / "run"), nodes=NODES, minimum=NODES)
        run = serve(InThisProcess(folder), Experiment.load(folder / "experiment.toml"), terms)
    assert run.history[1]["accepted"] == NODES
    assert run.summary["parameters"] == PARAMETERS
    figures = {
        "nodes": NODES,
        "parameters": PARAMETERS,
        "reply_gb": run.history[1]["bytes_up"] / 1e9,
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "most_mb": MOST_MB,
        "seconds": round(perf_counter() - started, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
