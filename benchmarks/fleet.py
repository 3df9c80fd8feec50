"""The memory of a server whose nodes' replies exceed it: one round, 200 replies of 10 million parameters."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.apart import measured, say

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
    return measured(__name__)


def sentence(figures: dict[str, Any]) -> str:
    """The result in words."""
    return (
        f"{NAME}: the server takes {figures['nodes']} replies of {figures['parameters']:,} parameters "
        f"({figures['reply_gb']:.1f} GB) with {figures['peak_mb']:,.0f} MB (at most {figures['most_mb']:,})."
    )


def main() -> None:
    """The server, with nodes in the same process that answer when the server looks for their replies."""
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "deploy"))
    from flwr.app import Message
    from local_grid import LocalGrid, LocalNode

    from fedloom.deploy import Terms, serve
    from fedloom.experiment import Experiment

    class Late(LocalGrid):
        """The tests' grid, on which a node answers only when the server looks for its reply, and then forgets."""

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            known = len(letters)
            letters.extend(messages)
            return [f"letter {number}" for number in range(known, len(letters))]

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            for number in message_ids:
                letter = letters[int(number.split()[1])]
                (reply,) = super().pull_messages(super().push_messages([letter]))
                reply.metadata.__dict__["_reply_to_message_id"] = number
                self.nodes[letter.metadata.dst_node_id].node = None
                yield reply

    letters: list[Message] = []
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "experiment.toml").write_text(EXPERIMENT)
        started = perf_counter()
        terms = Terms(out=str(folder / "run"), nodes=NODES, minimum=NODES)
        grid = Late(LocalNode({"client": client}, folder) for client in range(NODES))
        run = serve(grid, Experiment.load(folder / "experiment.toml"), terms)
    assert run.history[1]["accepted"] == NODES
    assert run.summary["parameters"] == PARAMETERS
    figures = {
        "nodes": NODES,
        "parameters": PARAMETERS,
        "reply_gb": run.history[1]["bytes_up"] / 1e9,
        "most_mb": MOST_MB,
        "seconds": round(perf_counter() - started, 1),
    }
    say(figures)


if __name__ == "__main__":
    main()
