"""What goes to a node's own process and back is the message, bit by bit; what is no message does not go there."""

from __future__ import annotations

import subprocess
import sys
import time
from multiprocessing import Pipe
from pathlib import Path

import psutil
import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from fedloom.deploy.codec import bundle, decode, encode, unbundle
from fedloom.deploy.resident import answered, receive, send

SECONDS = 600.0
"""Longer than it takes on a machine that has much else to do."""
EXPERIMENT = '[data]\nname = "synthetic"\nclients = 3\n[model]\nname = "linear"\n'
HELLO = bundle(own=encode({"function": "hello"}))


def test_a_message_comes_through_as_it_was() -> None:
    tree = {"x": torch.randn(3, 2), "none": torch.zeros(0, 4), "words": ["a", None], "deep": {"n": torch.tensor(7)}}
    ours, theirs = Pipe()
    send(ours, bundle(own=encode(tree), shared=encode({})))
    back = unbundle(receive(theirs))
    assert back["shared"] == {}
    assert back["own"]["words"] == ["a", None]
    assert torch.equal(back["own"]["x"], tree["x"])
    assert back["own"]["none"].shape == (0, 4)
    assert int(back["own"]["deep"]["n"]) == 7


def test_what_is_no_message_is_not_handed_on() -> None:
    with pytest.raises(ValueError, match="'strange'"):
        send(Pipe()[0], RecordDict({"strange": ConfigRecord({"a": 1})}))


def test_a_resident_answers_as_the_node_would_and_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    code = (
        "import sys; from pathlib import Path; from flwr.app import RecordDict\n"
        "from fedloom.deploy.codec import bundle, encode; from fedloom.deploy.resident import answered\n"
        "config = {'client': 1, 'state': sys.argv[1]}\n"
        "reply = answered(Path(sys.argv[1]), config, RecordDict(), bundle(own=encode({'function': 'hello'})))\n"
        "print(reply['rest']['json'])\n"
    )
    # The resident belongs to whoever started the process that asks: here a shell, which waits until its input ends.
    command = ["sh", "-c", '"$0" -c "$1" "$2"; read line', sys.executable, code, str(tmp_path)]
    shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert shell.stdout is not None
    said = shell.stdout.readline()
    here = answered(tmp_path, {"client": 1}, RecordDict(), HELLO)
    assert said.strip() == here["rest"]["json"]
    assert decode(here)["card"]["name"] == "1"
    assert len(residents(shell.pid)) == 1
    assert shell.stdin is not None
    shell.stdin.close()
    shell.wait(SECONDS)
    shell.stdout.close()
    until = time.monotonic() + SECONDS
    while residents(shell.pid):
        assert time.monotonic() < until
        time.sleep(0.05)


def residents(parent: int) -> list[int]:
    """The residents that belong to a process."""
    found = psutil.process_iter(["cmdline", "status"])
    return [
        process.pid
        for process in found
        if (process.info["cmdline"] or [""])[-1] == str(parent) and "fedloom.deploy.resident" in process.info["cmdline"]
    ]
