"""Flower's programs as fedloom starts them: with locks for which Flower has the parts, but no option.

Without these anybody who reaches the SuperLink's port may start a run, that is, run code as its owner on the server and
on every node; and anybody on the machine may take tasks from the runtime API of the SuperLink or of a SuperNode, or
read a task's token in the list of processes. Here the control API asks for a token, the runtime APIs for a secret that
is new at every start, by TLS; tasks get their tokens through pipes; and an app that the authority did not sign is not
run.
Everything that these programs write is for their owner alone.

``python -P -m fedloom.deploy.programs`` with

- ``superlink TOKEN …``: the SuperLink with Flower's options, and the file of the token that its control asks for;
- ``supernode AUTHORITY PORT …``: a SuperNode with Flower's options; it trusts this authority's server and apps;
- ``login ADDRESS TOKEN``: lets the ``flwr`` command of this ``FLWR_HOME`` use the control at an address;
- ``sign FOLDER KEY``: signs the app in a folder with the authority's secret;
- ``tasks`` and ``app``: started by the others, what Flower calls SuperExec and its task processes.

Every message to a node is a task: where that is safe, they are done in copies of the process that takes them.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from fedloom.deploy.security import LOOPBACK, OWNER_ONLY, make_certificates, make_token
from fedloom.errors import RunError

PROGRAM = (sys.executable, "-P", "-m", "fedloom.deploy.programs")
"""How these are started; -P, or a file in the folder that they are started in could take the place of a module."""
_PAUSE = 0.5  # each look for a task costs some milliseconds on both sides
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_CLIENT = "flwr-clientapp"
_APPS: dict[str, tuple[str, str | None]] = {
    "flwr-serverapp": ("flwr.superlink.runtime.run_serverapp", "flwr.superlink.cli"),
    _CLIENT: ("flwr.supernode.runtime.run_clientapp", None),
}
"""The kinds of tasks that are done: the module of Flower's that installs and runs the app, and the command to it.

The command of a client's app only reads its words, but comes with a whole SuperNode.
"""
_AT_HAND = ("fedloom.deploy.resident", "fedloom.deploy.signature", "flwr.cli.config_utils")


def superlink(token: str, *options: str) -> None:
    """Flower's SuperLink, whose control asks for the token, and its runtime for a secret."""
    program = import_module("flwr.superlink.cli.flower_superlink")
    from flwr.supercore.address import resolve_bind_address

    from fedloom.deploy.control import TokenPlugin

    secret = secrets.token_bytes(32)
    sys.argv = ["flower-superlink", *options, "--isolation", "process"]
    config = program._parse_superlink_lifespan_config()
    config = replace(config, authn_plugin=TokenPlugin(Path(token).read_text().strip()), superexec_auth_secret=secret)
    if config.certificates is None:
        raise RunError("the SuperLink needs TLS: give --ssl-ca-certfile, --ssl-certfile and --ssl-keyfile")
    host = f"[{config.host}]" if ":" in config.host else config.host
    address, authority = resolve_bind_address(f"{host}:{config.port}"), config.ssl_ca_certfile
    _handed(secret, "tasks", address, authority, authority)
    program._run_superlink_http_api(config)


def supernode(authority: str, port: str, *options: str) -> None:
    """Flower's SuperNode, whose runtime API is on this machine alone, and there for those who know its secret."""
    from flwr.supernode.cli import flower_supernode

    host = LOOPBACK[1]
    with tempfile.TemporaryDirectory(prefix="runtime-", dir=os.environ.get("FLWR_HOME")) as name:
        files, secret = make_certificates(Path(name)), make_token(Path(name) / "secret")
        sys.argv = ["flower-supernode", *options, "--root-certificates", authority, "--host", host, "--port", port]
        sys.argv += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
        sys.argv += ["--ssl-certfile", str(files.certificate), "--ssl-keyfile", str(files.key)]
        sys.argv += ["--ssl-ca-certfile", str(files.authority)]
        _handed(secret.read_bytes(), "tasks", f"{host}:{port}", str(files.authority), authority)
        flower_supernode()


def tasks(address: str, certificates: str, authority: str, parent: str) -> None:
    """Takes the tasks of a runtime API, and starts a process for each, until the parent is gone."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient

    signed = SuperExecAuthHttpInterceptor(master_secret=sys.stdin.buffer.read(), protected_methods={_ACQUIRE})
    start_parent_process_monitor(int(parent))
    with (
        suppress(KeyboardInterrupt),
        RuntimeHttpClient.from_server_address(
            address,
            False,
            Path(certificates).read_bytes(),
            [RuntimeVersionHttpInterceptor(component_name="SuperExec"), signed],
            retry_invoker=make_simple_http_retry_invoker(),
        ) as client,
    ):
        while True:
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=list(_APPS)))
            if found.token and found.task.type == _CLIENT and sys.platform == "linux":
                _forked(found.token, address, certificates, authority)
            elif found.token:
                _handed(found.token.encode(), "app", found.task.type, address, certificates, authority)
            time.sleep(_PAUSE)


def app(kind: str, address: str, certificates: str, authority: str, parent: str) -> None:
    """Does one task: runs the app that the task belongs to, if the authority has signed it."""
    _done(kind, sys.stdin.read(), address, certificates, authority, parent)


def _done(kind: str, token: str, address: str, certificates: str, authority: str, parent: str) -> None:
    place, commands = _APPS[kind]
    module = import_module(place)
    _only_signed(module, Path(authority))
    if commands is None:
        module.run_clientapp(address, token, False, Path(certificates).read_bytes(), int(parent))
        return
    sys.argv = [kind, "--runtime-api-address", address, "--token", token]  # ours: no other process sees it
    sys.argv += ["--root-certificates", certificates, "--parent-pid", parent]
    getattr(import_module(commands), kind.replace("-", "_"))()


def _forked(token: str, address: str, certificates: str, authority: str) -> None:
    """Does the task of a node in a copy of this process, which has Flower at hand: every message is such a task."""
    for name in (_APPS[_CLIENT][0], *_AT_HAND):
        import_module(name)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:  # those that have ended
            pass
    parent, code = str(os.getpid()), 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the other thread only waits for the end of the parent
        if os.fork():
            return
    try:
        _done(_CLIENT, token, address, certificates, authority, parent)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _only_signed(module: Any, authority: Path) -> None:
    """Makes Flower's module install no app that is not signed, or that is said to be another one than it is."""
    from flwr.cli.config_utils import get_fab_metadata
    from flwr.supercore.runtime import RuntimeHttpClient

    from fedloom.deploy.signature import check_app

    install, pull = module.install_from_fab, RuntimeHttpClient.PullTaskInput
    said: list[tuple[str, str, str]] = []

    def pulled(client: RuntimeHttpClient, request: Any) -> Any:
        found = pull(client, request)
        said.append((found.run.fab_id, found.run.fab_version, found.fab.hash_str))
        return found

    def installed(content: bytes, **options: Any) -> Any:
        check_app(content, authority)
        if said != [(*get_fab_metadata(content), hashlib.sha256(content).hexdigest())]:
            raise RunError("the app is said to be another one than it is (its name, version or hash): it was not run")
        return install(content, **options)

    RuntimeHttpClient.PullTaskInput = pulled  # type: ignore[method-assign, assignment]
    module.install_from_fab = installed


def login(address: str, token: str) -> None:
    """Keeps the token where Flower's command looks for it."""
    from flwr.cli.auth_plugin import OidcCliPlugin
    from flwr.supercore.auth.typing import AccountAuthCredentials

    text = Path(token).read_text().strip()
    OidcCliPlugin(address).store_tokens(AccountAuthCredentials(access_token=text, refresh_token=text))


def sign(folder: str, key: str) -> None:
    """Signs an app."""
    from fedloom.deploy.signature import sign_app

    sign_app(Path(folder), Path(key))


def _handed(secret: bytes, *words: str) -> None:
    """Starts another of these programs, which ends with this process and gets a secret through a pipe."""
    process = subprocess.Popen([*PROGRAM, *words, str(os.getpid())], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(secret)
    process.stdin.close()


def main(name: str, *words: str) -> None:
    """Runs one of the programs."""
    os.umask(OWNER_ONLY)
    sys.path.append(os.getcwd())  # modules of the user's own, after all others
    programs: tuple[Callable[..., None], ...] = (superlink, supernode, tasks, app, login, sign)
    {program.__name__: program for program in programs}[name](*words)


if __name__ == "__main__":
    main(*sys.argv[1:])
