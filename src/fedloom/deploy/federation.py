"""A whole federation on this machine, closed to its other users: a SuperLink, which knows its SuperNodes, and these."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

from fedloom.deploy.programs import PROGRAM
from fedloom.deploy.security import LOOPBACK, OWNER_ONLY, make_certificates, make_node_key, make_token, private_folder
from fedloom.deploy.signature import sign_app
from fedloom.errors import ConfigError, RunError
from fedloom.storage.closing import Closing

HOST = LOOPBACK[1]
_START_SECONDS = 120.0
_STOP_SECONDS = 10.0
_PAUSE = 0.1
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


class Federation(Closing):
    """Processes of Flower on this machine, started by ``with`` and all stopped at its end, whatever happens.

    Everything that they write is below ``folder``, its owner's alone: certificates, keys, logs, what Flower keeps.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        private_folder(self.folder)
        self.certificates = make_certificates(self.folder / "certificates")
        self.token = make_token(self.folder / "certificates" / "control.token")
        self.port = free_port()
        self.processes: dict[str, psutil.Popen] = {}
        self._client: ControlHttpClient | None = None

    def __enter__(self) -> Self:
        try:
            self.start_link()
        except BaseException:
            self.close()
            raise
        return self

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"{HOST}:{self.port}"

    @property
    def control(self) -> ControlHttpClient:
        """The SuperLink's control."""
        if self._client is None:
            self._client = ControlHttpClient.from_server_address(
                self.address,
                insecure=False,
                root_certificates=self.certificates.authority.read_bytes(),
                interceptors=[
                    RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
                    _Bearer(self.token.read_text()),
                ],
            )
        return self._client

    def start_link(self) -> None:
        """Starts the SuperLink (again), and waits until it answers."""
        files = self.certificates
        self.launch(
            "superlink",
            *(*PROGRAM, "superlink", str(self.token), "--host", HOST, "--port", str(self.port)),
            *("--database", str(self.folder / "superlink.db")),
            *("--ssl-ca-certfile", str(files.authority)),
            *("--ssl-certfile", str(files.certificate), "--ssl-keyfile", str(files.key)),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        )
        until = time.monotonic() + _START_SECONDS
        while not self._answers():
            self.check()
            if time.monotonic() >= until:
                raise RunError(
                    f"the SuperLink did not start within {_START_SECONDS:g} seconds: {self.tail('superlink')}"
                )
            time.sleep(_PAUSE)

    def start_node(self, name: str, /, **config: str | int) -> None:
        """Starts a SuperNode, with a key of its own that the SuperLink knows; a second time with the same key."""
        private = self.folder / "nodes" / name
        if not private.exists():
            _, public = make_node_key(private.parent, name)
            key = public_key_to_bytes(load_ssh_public_key(public.read_bytes()))  # type: ignore[arg-type]
            self.control.RegisterNode(RegisterNodeRequest(public_key=key))
        words = " ".join(f"{key}={_quoted(value)}" for key, value in config.items())
        self.launch(
            name,
            *(*PROGRAM, "supernode", str(self.certificates.authority), str(free_port()), "--superlink", self.address),
            *("--auth-supernode-private-key", str(private), "--node-config", words),
        )

    def run(self, app: Path, **config: Any) -> int:
        """Signs the app in a folder and starts it; the number of the run."""
        sign_app(app, self.certificates.authority_key)
        return self.start(app, **config)

    def start(self, app: Path, **config: Any) -> int:
        """Starts the app in a folder as it is; the number of the run."""
        content = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        request = StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(config))
        return int(self.control.StartRun(request).run_id)

    def outcome(self, run: int) -> str | None:
        """What came of a run: nothing to say (empty) when it is well done, or what went wrong; None: it goes on."""
        self.check()
        found = self.control.ListRuns(ListRunsRequest(run_id=run)).run_dict
        status = next(iter(found.values())).status
        if status.status != "finished":
            return None
        return "" if status.sub_status == "completed" else status.details or status.sub_status

    def check(self) -> None:
        """RunError when the SuperLink has ended by itself."""
        process = self.processes["superlink"]
        if process.poll() is not None:
            raise RunError(f"the SuperLink ended with code {process.returncode}: {self.tail('superlink')}")

    def log(self, name: str) -> str:
        """What a process has said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def tail(self, name: str) -> str:
        """The last that a process has said."""
        return " … ".join(self.log(name).splitlines()[-5:])

    def kill(self, name: str) -> None:
        """Ends a process and all that it has started at once, as a failure of power would."""
        _end([self.processes.pop(name)], psutil.Process.kill)

    def close(self) -> None:
        """Stops everything: first the nodes, then the SuperLink."""
        if self._client is not None:
            self._client.close()
            self._client = None
        processes = list(self.processes.values())[::-1]
        self.processes = {}
        _end(processes, psutil.Process.terminate, psutil.Process.kill)

    def launch(self, name: str, program: str, *arguments: str) -> None:
        """Starts a program of Flower, which stays quiet and keeps its things below the folder."""
        here = Path(sys.executable).parent
        home = self.folder / f"{name}-home"
        environment = {
            **os.environ,
            **_QUIET,
            "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(home),
        }
        private_folder(home)
        with open(self.folder / f"{name}.log", "ab", opener=_owners) as log:
            self.processes[name] = psutil.Popen(
                [str(here / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                umask=OWNER_ONLY,
                start_new_session=True,  # Ctrl-C is for us, who stop them in order
            )

    def _answers(self) -> bool:
        try:
            self.control.ListRuns(ListRunsRequest())
        except httpx.TransportError:
            return False
        return True


def _quoted(value: str | int) -> str:
    """A value for Flower's --node-config; a text in quotes that it does not have itself."""
    if not isinstance(value, str):
        return str(value)
    quote = next((mark for mark in "'\"" if mark not in value), None)
    if quote is None or (quote == '"' and "\\" in value):
        raise ConfigError(f"a node cannot be given {value!r}, which has quotes of both kinds; choose another name")
    return f"{quote}{value}{quote}"


class _Bearer:
    """Shows the SuperLink's control the token that it asks for."""

    def __init__(self, token: str) -> None:
        self.token = token

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Sends a request with the token."""
        context.request.headers["Authorization"] = f"Bearer {self.token}"
        return call_next(context)


def _owners(path: str, flags: int) -> int:
    """Opens a file that, if it is new, its owner alone can read."""
    return os.open(path, flags, 0o600)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def _family(processes: list[psutil.Popen]) -> list[psutil.Process]:
    """These processes and all that they have started and that is still at work, residents of nodes included."""
    found: list[psutil.Process] = [*processes]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += process.children(recursive=True)
    parents = {str(process.pid) for process in found}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or [""]
        if "fedloom.deploy.resident" in words and words[-1] in parents:
            found.append(process)
    return found


def _end(processes: list[psutil.Popen], *ways: Callable[[psutil.Process], None]) -> None:
    """Ends processes and their families in the first of these ways, and those that do not listen in the next."""
    left = _family(processes)
    for end in ways:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(process)
        _, left = psutil.wait_procs(left, _STOP_SECONDS)
