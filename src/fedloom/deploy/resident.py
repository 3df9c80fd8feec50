"""A node's own process, which has torch and the rows at hand: Flower starts a new process for every message.

The short-lived process hands the message on through a socket in a folder that only this user can enter, and gets the
reply. The resident ends with the SuperNode that it was started for, or when nobody has asked it for a while. A node
without a folder of its own (``state``) does without a resident.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import psutil
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

_START_SECONDS = 300.0
_IDLE_SECONDS = 900.0
_PAUSE = 0.05
_WATCH = 0.2


def answered(folder: Path, config: dict[str, Any], state: RecordDict, content: RecordDict) -> RecordDict:
    """The reply of a node to a message: by its resident, or, if it has none, here."""
    if os.name == "posix" and isinstance(config.get("state"), str):
        with suppress(OSError, EOFError, ValueError, TypeError):
            return _asked(folder, config, content)
    from fedloom.deploy.node import Node

    return Node(folder, config, state).answer(content)


def send(connection: Connection, content: RecordDict) -> None:
    """Sends a message: its texts and what its arrays are like, then the bytes of each; ValueError for other records."""
    header: dict[str, Any] = {}
    arrays: list[Array] = []
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            header[name] = [[key, array.dtype, array.shape, array.stype] for key, array in record.items()]
            arrays += record.values()
        elif isinstance(record, ConfigRecord) and set(record) == {"json"} and isinstance(record["json"], str):
            header[name] = record["json"]
        else:
            raise ValueError(f"the record {name!r} is none of a message")
    connection.send_bytes(json.dumps(header).encode())
    for array in arrays:
        connection.send_bytes(array.data)


def receive(connection: Connection) -> RecordDict:
    """The message that the other end sends."""
    content = RecordDict()
    for name, entry in json.loads(connection.recv_bytes()).items():
        if isinstance(entry, str):
            content[name] = ConfigRecord({"json": entry})
        else:
            content[name] = ArrayRecord(
                {key: Array(dtype, tuple(shape), stype, connection.recv_bytes()) for key, dtype, shape, stype in entry}
            )
    return content


def _asked(folder: Path, config: dict[str, Any], content: RecordDict) -> RecordDict:
    """The answer of the resident, which is started if there is none yet; OSError when it cannot be."""
    words = [str(folder), json.dumps(config, sort_keys=True), str(os.getppid())]
    path = _place() / f"{hashlib.sha256(json.dumps([*words, sys.executable]).encode()).hexdigest()[:24]}.sock"
    command = [sys.executable, "-P", "-m", "fedloom.deploy.resident", str(path), *words]
    process: subprocess.Popen[bytes] | None = None
    until = time.monotonic() + _START_SECONDS
    while (process is None or process.poll() is None) and time.monotonic() < until:
        with suppress(FileNotFoundError, ConnectionRefusedError), Client(str(path), "AF_UNIX") as connection:
            send(connection, content)
            return receive(connection)
        process = process or subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        time.sleep(_PAUSE)
    raise OSError("the node's own process does not start")


def _place() -> Path:
    """A folder for sockets that only this user can enter."""
    place = Path(tempfile.gettempdir()) / f"fedloom-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or not place.is_dir():
        raise OSError(f"{place} is not ours alone")
    return place


def stay(path: str, folder: str, config: str, parent: str) -> None:
    """Answers messages until the parent is gone."""
    from fedloom.deploy.node import Node, asks_who

    Path(path).unlink(missing_ok=True)
    asked = [time.monotonic()]
    threading.Thread(target=_watch, args=(path, int(parent), asked), daemon=True).start()
    node = Node(Path(folder), json.loads(config), RecordDict())
    with Listener(path, "AF_UNIX") as listener:
        while True:
            with suppress(OSError, EOFError), listener.accept() as connection:
                content = receive(connection)
                asked[0] = float("inf")
                if asks_who(content):  # a run begins: what was loaded for an earlier one may have changed
                    node = Node(Path(folder), json.loads(config), RecordDict())
                reply = node.answer(content)
                asked[0] = time.monotonic()
                send(connection, reply)


def _watch(path: str, parent: int, asked: list[float]) -> None:
    """Ends this process when its parent is gone, or nobody has asked it for long."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(parent)
        while time.monotonic() - asked[0] < _IDLE_SECONDS and process.is_running():
            if process.status() == psutil.STATUS_ZOMBIE:
                break
            time.sleep(_WATCH)
    with suppress(OSError):
        os.unlink(path)
    os._exit(0)


if __name__ == "__main__":
    sys.path.append(os.getcwd())  # modules of the user's own, after all others: none takes the place of another
    stay(*sys.argv[1:])
