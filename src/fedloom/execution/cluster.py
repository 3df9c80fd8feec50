"""A connection to a Ray cluster, and how tensors travel in it."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fedloom.errors import ConfigError, RunError
from fedloom.storage.tensors import Bytes, from_bytes, to_bytes

_CONNECT_SECONDS = 5.0  # for an answer of the cluster's address
_LOOK_SECONDS = 2.0  # between two looks whether the cluster is still there
_GONE_SECONDS = 20.0  # after which a cluster whose head does not answer is gone; Ray itself would end us after 60
_TEMPORARY = 20  # letters of a temporary folder below which Ray can still name its sockets

Place = tuple[str, int]
Parts = tuple[Bytes, torch.dtype, tuple[int, ...]]


class Cluster:
    """A connection to Ray: to a cluster of our own, to one that runs, or the one that this process has already."""

    def __init__(self, address: str | None, cpus: int | None) -> None:
        """Without an address a cluster with so many CPUs is started on this machine."""
        self.ray = library()
        self.errors = self.ray.exceptions
        self.folder: str | None = None
        self.line: socket.socket | None = None
        self.looked, self.silent = time.monotonic(), 0.0
        self.handler = signal.getsignal(signal.SIGTERM)  # Ray puts its own in the place of it
        self.ours = not self.ray.is_initialized()
        try:
            if self.ours:
                self._connect(address, cpus)
            context = self.ray.get_runtime_context()
            here = next(node for node in self.ray.nodes() if node["NodeID"] == context.get_node_id())
        except BaseException:
            self.close([])
            raise
        self.node: Place = here["NodeManagerAddress"], here["NodeManagerPort"]
        self.head = _place(context.gcs_address)
        send_tensors_as_bytes()

    def _connect(self, address: str | None, cpus: int | None) -> None:
        how: dict[str, Any] = {"address": address or "local", "log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            short = os.name != "posix" or len(tempfile.gettempdir()) < _TEMPORARY
            self.folder = tempfile.mkdtemp(prefix="fedloom-", dir=None if short else "/tmp")
            how |= {"num_cpus": cpus or os.cpu_count() or 1, "num_gpus": 0, "include_dashboard": False}
            how |= {"_temp_dir": self.folder}
        try:
            self.ray.init(**how)
        except (RuntimeError, ValueError, OSError, self.errors.RayError) as error:
            where = "a Ray cluster on this machine" if address is None else f"the Ray cluster at {address!r}"
            hint = "" if address is None else "; if it wants a token, set RAY_AUTH_MODE=token"
            raise ConfigError(f"cannot use {where}: {first_line(error)}{hint}") from error

    def cpus(self) -> int:
        """The CPUs of all nodes, used or not."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def nodes(self) -> set[str]:
        """The nodes that are alive."""
        self._look()
        return {node["NodeID"] for node in self.ray.nodes() if node["Alive"]}

    def put(self, value: Any) -> Any:
        """A reference to a value, which lives as long as the reference."""
        self._look()
        return self.ray.put(value)

    def get(self, reference: Any) -> Any:
        """The value; its tensors and arrays lie in the cluster's memory and must not be written to."""
        self._look()
        return self.ray.get(reference)

    def first(self, references: list[Any], seconds: float) -> Any | None:
        """The first that is ready; None if that takes too long."""
        end = time.monotonic() + seconds
        while references and (left := end - time.monotonic()) > 0:
            ready, _ = self.ray.wait(references, num_returns=1, timeout=min(left, _LOOK_SECONDS))
            if ready:
                return ready[0]
            self._look()
        return None

    def actors(self, cls: type) -> Any:
        """What starts objects of a class somewhere in the cluster, each with a CPU of its own."""
        return self.ray.remote(num_cpus=1, num_gpus=0, max_restarts=0, scheduling_strategy="SPREAD")(cls)

    def close(self, actors: Iterable[Any]) -> None:
        """End these actors, and the connection if it is ours, and the cluster if that is."""
        if self.ray.is_initialized():
            for actor in actors:
                with suppress(Exception):  # it may be gone already, which is what we want
                    self.ray.kill(actor)
            self.ray.util.deregister_serializer(Tensor)
        if self.line is not None:
            self.line.close()
        if not self.ours:
            return
        self.ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self.handler)

    def _look(self) -> None:
        """Refuse to go on without a cluster: Ray would not raise an error but end this process.

        It does so at once when it finds that the daemon of this node is gone, and after a minute without the head.
        """
        if not self._node_is_there():
            raise _gone("the Ray daemon of this node")
        now = time.monotonic()
        if now - self.looked < _LOOK_SECONDS:
            return
        self.looked = now
        if _call(self.head) is not None:
            self.silent = 0.0
            return
        self.silent = self.silent or now
        if now - self.silent > _GONE_SECONDS:
            raise _gone("the head of the Ray cluster")

    def _node_is_there(self) -> bool:
        """An open line to the daemon tells at once, and for nothing, when that ends; it may also just hang up."""
        if self.line is not None:
            try:
                while self.line.recv(4096):
                    pass
            except BlockingIOError:
                return True
            except OSError:
                pass
            self.line.close()
        self.line = _call(self.node)
        return self.line is not None


def library() -> ModuleType:
    """Ray, if it is installed."""
    try:
        import ray
        import ray.util
    except ImportError as error:
        raise ConfigError("the executor 'ray' needs Ray: pip install 'fedloom[ray]'") from error
    return ray


def refuse_unreachable(address: str) -> None:
    """Refuse an address where nobody answers; Ray itself would try for minutes."""
    from ray._private.services import canonicalize_bootstrap_address

    if "://" in address:
        raise ConfigError(
            f"the Ray address {address!r} is one of a Ray client; start the run on a node of the cluster, with the "
            "address HOST:PORT or 'auto'"
        )
    try:
        found = canonicalize_bootstrap_address(address)
        if found is None:
            raise ConnectionError("no cluster runs on this machine")
        socket.create_connection(_place(found), _CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"there is no Ray cluster at {address!r}: {first_line(error)}; start one with `ray start --head`, or "
            "leave the address out to use this machine alone"
        ) from error


def send_tensors_as_bytes() -> None:
    """Tell Ray, in this process, to place tensors without pickling them and to read them in place."""
    library().util.register_serializer(Tensor, serializer=parts_of, deserializer=tensor_of)


def parts_of(tensor: Tensor) -> Parts:
    """A tensor as an array of bytes, its type and its shape."""
    return to_bytes(tensor), tensor.dtype, tuple(tensor.shape)


def tensor_of(parts: Parts) -> Tensor:
    """The tensor again, without a copy."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nobody does: ``copied``
        return from_bytes(*parts)


def first_line(error: Exception) -> str:
    """What an error says before it becomes long."""
    return str(error).strip().partition("\n")[0]


def _place(address: str) -> Place:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _call(place: Place) -> socket.socket | None:
    """A line to whoever listens there."""
    try:
        line = socket.create_connection(place, _CONNECT_SECONDS)
    except OSError:
        return None
    line.setblocking(False)
    return line


def _gone(what: str) -> RunError:
    return RunError(f"{what} is gone; the run can be resumed from its last checkpoint when there is a cluster again")
