"""Tasks of a node, of which every message is one: each in a process of its own, but not in a new Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from fedloom.deploy import programs


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each task is a new Python")
@pytest.mark.parametrize("end", ["well", "with an error", "by itself"])
def test_a_task_is_done_in_a_copy_of_the_process_that_took_it(
    end: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()

    def done(*words: str) -> None:
        os.write(writer, json.dumps([os.getpid(), os.getppid(), *words]).encode())
        if end == "with an error":
            raise ZeroDivisionError("in the task")
        if end == "by itself":
            sys.exit(7)

    monkeypatch.setattr(programs, "_done", done)
    programs._forked("token", "address", "certificates", "authority")
    os.close(writer)
    with os.fdopen(reader) as pipe:
        child, parent, *words = json.loads(pipe.read())
    assert parent == os.getpid() != child
    assert words == ["flwr-clientapp", "token", "address", "certificates", "authority", str(os.getpid())]
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == {"well": 0, "with an error": 1, "by itself": 7}[end]
    assert ("ZeroDivisionError: in the task" in capfd.readouterr().err) == (end == "with an error")


def test_who_takes_and_does_tasks_imports_neither_flowers_database_nor_torch() -> None:
    code = (
        "import sys\nfrom importlib import import_module\nfrom fedloom.deploy import programs as p\n"
        "[import_module(name) for name in (p._APPS[p._CLIENT][0], *p._AT_HAND)]\n"
        "print([name for name in ('sqlalchemy', 'torch', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
