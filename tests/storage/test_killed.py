"""A run that is killed with -9 again and again, at random moments, goes on from a consistent state each time."""

import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from fedloom.storage import checkpoint
from fedloom.storage.history import History
from fedloom.storage.store import open_latest

CLIENTS, SIZE, KILLS = 40, 50, 8

# A federation in miniature: each round some clients add to their memories, the server adds up; every round is saved.
# The program imports once and forks for each life of the run, so that a life begins at once.
PROGRAM = """
    import os, sys
    from pathlib import Path
    import torch
    from fedloom.storage import checkpoint
    from fedloom.storage.history import History
    from fedloom.storage.store import open_latest

    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    clients, size = int(sys.argv[2]), int(sys.argv[3])

    def say(text):
        os.write(1, (text + "\\n").encode())

    def live():
        say(f"pid {os.getpid()}")
        found, store = open_latest(folder, limit_bytes=3000)
        t, x = (found.meta["round"], found.groups["state"]["x"]) if found else (0, torch.zeros(size))
        history = History(folder / "history.jsonl")
        history.truncate(t)
        while True:
            t += 1
            chosen = (torch.arange(7) * 5 + t * t) % clients
            columns, known = store.gather(chosen)
            c = torch.zeros(7, size)
            c[known] = columns.get("c", c[:0])
            c += t
            say("scatter")
            store.scatter(chosen, {"c": c, "t": torch.full((7,), t)})
            x = x + c.sum(0)
            history.append({"round": t, "x": x[0]})
            say("commit")
            index = store.commit()
            history.flush()
            say("save")
            checkpoint.save_latest(folder, {"state": {"x": x}, "memory": index}, {"round": t})
            say("landed")
            store.landed()

    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            live()
        os.waitpid(child, 0)
        say("dead")
"""


def uninterrupted(rounds):
    """What the program computes, with a dict for a store."""
    x, memory = torch.zeros(SIZE), {}
    for t in range(1, rounds + 1):
        chosen = ((torch.arange(7) * 5 + t * t) % CLIENTS).tolist()
        for client in chosen:
            memory[client] = {"c": memory.get(client, {"c": torch.zeros(SIZE)})["c"] + t, "t": torch.tensor(t)}
        x = x + torch.stack([memory[client]["c"] for client in chosen]).sum(0)
    return x, memory


def check(folder):
    """The folder, as a resumed run would find it; returns the round."""
    found, store = open_latest(folder)
    if found is None:
        return 0
    t = found.meta["round"]
    x, memory = uninterrupted(t)
    assert torch.equal(found.groups["state"]["x"], x)
    assert store.clients().tolist() == sorted(memory)
    for client, expected in memory.items():
        assert all(torch.equal(store.get(client)[key], expected[key]) for key in expected)
    rows = History.read(folder / "history.jsonl").rows
    assert [row["round"] for row in rows[:t]] == list(range(1, t + 1))
    return t


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_killed_at_any_moment_goes_on_in_the_same_bits(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    folder = tmp_path / "run"
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": str(Path(checkpoint.__file__).parents[2])}
    command = [sys.executable, str(program), str(folder), str(CLIENTS), str(SIZE)]
    dice = random.Random(0)
    reached = []
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        for life in range(KILLS):
            run.stdin.write("live\n")
            run.stdin.flush()
            child = int(run.stdout.readline().split()[1])
            for _ in range(dice.randrange(1 if life else 9, 50)):
                assert run.stdout.readline() != "dead\n"
            os.kill(child, signal.SIGKILL)
            while run.stdout.readline() != "dead\n":
                pass
            reached.append(check(folder))
        run.stdin.close()
    assert reached == sorted(reached)
    assert reached[-1] > 10
    assert len(list((folder / "memory").iterdir())) < 12
