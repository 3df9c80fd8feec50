"""Real federations on this machine: TLS, node authentication, and everything killed and started again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))
from test_agreement import rows

import truths
from fedloom.cli import app
from fedloom.deploy import Terms
from fedloom.deploy.federation import HOST, Federation, free_port
from fedloom.deploy.project import write_app
from fedloom.deploy.security import make_certificates, make_node_key, private_folder
from fedloom.errors import RunError
from fedloom.experiment import Experiment
from fedloom.storage import toml
from fedloom.storage.seal import opened

SECONDS = 600.0
NOBODY = 65534
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user of the machine")


def until(what: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    """Waits for a condition, and for no longer than anybody would."""
    end = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < end, "it never came true"
        assert process is None or process.poll() is None, "the process ended before"
        time.sleep(0.5)  # every look at a run is work for its SuperLink


def rounds(run: Path) -> int:
    history = run / "history.jsonl"
    return len(history.read_text().splitlines()) - 1 if history.is_file() else -1


def at_work(folder: Path) -> list[list[str]]:
    """The processes that have something to do with a folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(str(folder) in word for word in words):
            found.append(words)
    return found


def test_a_rehearsal_of_files_that_is_interrupted_leaves_no_process_and_goes_on_in_the_same_bits(
    tmp_path: Path,
) -> None:
    files = [tmp_path / f"{name}.csv" for name in ("graz", "lyon", "o'slo")]
    for number, file in enumerate(files):
        rows(number).to_csv(file, index=False)
    data = f'[data]\npath = {[str(file) for file in files]}\nlabel_column = "outcome"\ndrop = ["id", "cost"]\n'
    text = truths.written(tmp_path, "scaffold").read_text().replace('"lenet"', '"mlp"')
    experiment, out = tmp_path / "experiment.toml", tmp_path / "run"
    experiment.write_text(text[: text.index("[data]")] + data + text[text.index("[model]") :])
    command = [sys.executable, "-m", "fedloom.cli", "deploy", "up", str(experiment), "--nodes", "2"]
    command += ["--out", str(out)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: rounds(out) == 1, first)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=SECONDS)
    assert first.returncode == 130
    assert "stopped, and all nodes with it" in said.decode()
    until(lambda: not at_work(tmp_path))
    second = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert second.returncode == 0, second.stderr
    until(lambda: not at_work(tmp_path))
    assert not (tmp_path / "run.rehearsal").exists()
    assert (out / "report.html").is_file()
    assert "--nodes 2 leaves out 1 of 3: o'slo" in second.stdout
    assert "agreed: standardised by counts, sums and sums of squares of 2 clients" in second.stdout
    both = {"data.path": [str(file) for file in files[:2]]}
    expected = Experiment.load(experiment, both).run(tmp_path / "simulated").summary
    summary = opened(json.loads((out / "summary.json").read_text()))
    assert summary["theta_sha256"] == expected["theta_sha256"]
    assert set(summary) == set(expected)
    assert f"After round {expected['rounds']}" in second.stdout


@pytest.fixture
def federation() -> Iterator[Federation]:
    """A federation in a place that every user of the machine can enter: it has to close its own doors."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        yield Federation(Path(place) / "federation")


def open_to_others(folder: Path) -> list[str]:
    """What other users of the machine may read, enter or change, of a folder and all that is below it."""
    found = {path: path.lstat().st_mode for path in (folder, *folder.rglob("*"))}
    return [str(path) for path, mode in found.items() if mode & 0o077 and not stat.S_ISLNK(mode)]


def as_somebody_else(work: Callable[[], dict[str, str]]) -> dict[str, str]:
    """What another user of the machine finds; without root's rights to become one, we act as strangers ourselves.

    The process is forked, not started: others may not be able to read the Python that runs these tests.
    """
    end, start = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException), os.fdopen(start, "w") as pipe:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            try:
                found = {"user": str(os.getuid()), **work()}
            except Exception as error:
                found = {"error": repr(error)}
            pipe.write(json.dumps(found))
        os._exit(0)
    os.close(start)
    with os.fdopen(end) as pipe:
        found = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert found.pop("user", found) == str(NOBODY if os.geteuid() == 0 else os.getuid())
    return found


def came_of(call: Callable[[Any], object], word: Any) -> str:
    try:
        return f"done: {call(word)!r}"
    except httpx.HTTPStatusError as error:
        return str(error.response.status_code)
    except OSError as error:
        return type(error).__name__


def _intruder(federation: Federation, app: Path) -> None:
    """Somebody else on this machine, who has the certificate and an app, tries every door while a run is under way."""
    runtimes = {"superlink": federation.address}
    for name in ("node-0", "node-1"):
        words = federation.processes[name].cmdline()
        runtimes[name] = f"{HOST}:{words[words.index('supernode') + 2]}"
    paths = [federation.folder, *(path for path in federation.folder.rglob("*") if path.is_file())]
    authority = federation.certificates.authority.read_bytes()
    fab = fab_to_proto(Fab("", build_fab_from_disk(app), {}))
    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    kinds = ["flwr-serverapp", "flwr-clientapp"]

    def tries() -> dict[str, str]:
        control = ControlHttpClient.from_server_address(federation.address, False, authority, [version])
        found = {
            "start a run": came_of(control.StartRun, StartRunRequest(fab=fab)),
            "list runs": came_of(control.ListRuns, ListRunsRequest()),
            "register a node": came_of(control.RegisterNode, RegisterNodeRequest(public_key=b"mine")),
        }
        for name, address in runtimes.items():
            others = [version, RuntimeTokenHttpInterceptor("0" * 64)]
            runtime = RuntimeHttpClient(f"https://{address}", interceptors=others, verify=False)
            found[f"a task of {name}"] = came_of(runtime.AcquireTask, AcquireTaskRequest(supported_task_types=kinds))
            found[f"an input of {name}"] = came_of(runtime.PullTaskInput, PullTaskInputRequest())
        if os.getuid() == NOBODY:
            found |= {str(path): came_of(Path.read_bytes, path) for path in paths[1:]}
            found[str(paths[0])] = came_of(os.listdir, paths[0])
        return found

    found = as_somebody_else(tries)
    assert {door: came for door, came in found.items() if came not in ("401", "PermissionError")} == {}
    assert len(found) >= 9
    tasks = [words for words in at_work(federation.folder) if "app" in words]
    assert any("flwr-serverapp" in words for words in tasks)
    assert not [words for words in tasks if re.search(r"--token|[0-9a-f]{32}", " ".join(words))]


def app_of(folder: Path, method: str, **terms: Any) -> tuple[Path, Path]:
    """The app that runs one of the experiments on two nodes, and where the run will be."""
    place, out = folder / f"{method}-app", folder / f"{method}-run"
    experiment = Experiment.load(truths.written(folder, method))
    write_app(place, toml.dumps(experiment.resolved()), Terms(out=str(out), nodes=2, **terms))
    return place, out


def done(federation: Federation, run: int, out: Path) -> dict[str, Any]:
    """The summary of a run, once it has well ended."""
    until(lambda: federation.outcome(run) is not None, federation.processes["superlink"])
    assert federation.outcome(run) == "", f"{federation.outcome(run)}\n{federation.log('superlink')[-4000:]}"
    summary = opened(json.loads((out / "summary.json").read_text()))
    return summary


def history(out: Path) -> list[dict[str, Any]]:
    """The rows that are complete."""
    lines = (out / "history.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def test_one_truth_whatever_happens_to_the_server_and_to_strangers(tmp_path: Path, federation: Federation) -> None:
    with federation:
        for client in range(2):
            federation.start_node(f"node-{client}", client=client, state=str(tmp_path / f"state-{client}"))
        place, out = app_of(tmp_path, "fedavg", minimum=2)
        federation.run(place)
        until(lambda: rounds(out) == 1, federation.processes["superlink"])
        _intruder(federation, place)
        federation.kill("superlink")
        federation.start_link()
        _strangers(federation, tmp_path)
        ends = {"fedavg": done(federation, federation.run(place), out)}
        _refused(federation)
        place, out = app_of(tmp_path, "aso-fed")
        ends["aso-fed"] = done(federation, federation.run(place), out)
        assert (out / "report.html").is_file()
        (place / "fleet_app.py").write_text("raise SystemExit('this must never be run')\n")
        run = federation.start(place)
        until(lambda: federation.outcome(run) is not None, federation.processes["superlink"])
        assert "so nothing of it was run" in str(federation.outcome(run))
        for folder in (federation.folder, place, out, *tmp_path.glob("state-*")):
            assert open_to_others(folder) == []
    until(lambda: not at_work(tmp_path) and not at_work(federation.folder))
    for method, end in ends.items():
        expected = truths.summary(tmp_path, method)
        assert end["executor"] == "flower"
        assert set(end) == set(expected)
        if method in truths.SYNCHRONOUS:
            assert end["theta_sha256"] == expected["theta_sha256"]
            assert end["metrics"] == pytest.approx(expected["metrics"])
    assert [row["accepted"] for row in history(out)[1:]] == [2, 2]
    assert ends["aso-fed"]["server_steps"] == 4


@pytest.fixture
def scripts() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts scripts of a project; all that they have started ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(script: Path, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        own = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **environment}
        with open(script.with_suffix(".log"), "ab") as log:
            command = [str(script), *words]
            started.append(subprocess.Popen(command, env=own, stdout=log, stderr=log, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it has started at once."""
    if process.poll() is None:
        for one in (*psutil.Process(process.pid).children(recursive=True), process):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()


def test_the_scripts_of_a_project_run_a_fleet_without_a_node_that_was_killed_and_with_one_that_joins_late(
    tmp_path: Path, scripts: Callable[..., subprocess.Popen[bytes]]
) -> None:
    names, fleet, port = ("lyon", "oslo", "bern"), tmp_path / "fleet", str(free_port())
    words = [word for name in names for word in ("--name", name)]
    made = CliRunner().invoke(app, ["deploy", "init", str(fleet), *words, "--host", HOST])
    assert made.exit_code == 0, made.output
    text = (fleet / "experiment.toml").read_text().replace("rounds = 20", "rounds = 1000")
    text = text.replace('name = "fedavg"', 'name = "scaffold"') + "\n[evaluation]\nevery = 0\n"
    (fleet / "experiment.toml").write_text(text)

    def start_node(name: str, drawn: np.ndarray[Any, Any]) -> subprocess.Popen[bytes]:
        """A node in a folder of its own, with what the page on deployment says that it needs."""
        host = tmp_path / name
        for part in ("certificates/ca.crt", f"nodes/{name}", "node.sh", "environment.sh"):
            (host / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(fleet / part, host / part)
        table = np.column_stack([drawn, drawn.sum(1) > 0])
        np.savetxt(host / "rows.csv", table, delimiter=",", header="a,b,c,label", comments="", fmt="%g")
        where = {"SUPERLINK": f"{HOST}:{port}", "NODE_PORT": str(free_port())}
        return scripts(host / "node.sh", name, str(host / "rows.csv"), **where)

    server = scripts(fleet / "server.sh", PORT=port)
    until(lambda: _listens(int(port)), server)
    listening = [at for at in psutil.Process(server.pid).net_connections() if at.status == psutil.CONN_LISTEN]
    assert {at.laddr.ip for at in listening} == {"127.0.0.1"}
    drawn = np.random.default_rng(1).normal(size=(3, 30, 3))
    nodes = {name: start_node(name, rows) for name, rows in zip(names[:2], drawn[:2], strict=True)}
    run = scripts(fleet / "run.sh", "--run-config", "nodes=2 deadline=20.0", PORT=port)
    until(lambda: rounds(fleet / "run") == 1, run)
    kill(nodes["oslo"])
    start_node("bern", drawn[2])  # it is ready by the time that the server has given up on the other
    until(lambda: any(row["failed"] for row in history(fleet / "run")[1:]), run)
    (first, *_) = (row["round"] for row in history(fleet / "run")[1:] if row["failed"])
    until(lambda: any(row["accepted"] == 2 for row in history(fleet / "run")[first + 1 :]), run)
    rows = history(fleet / "run")[1:]
    failures = [text for row in rows for text in row.get("failures", [])]
    assert failures[0].startswith(f"client oslo failed in round {first}: ")
    assert all(text.startswith("client oslo ") for text in failures)
    assert all(row["accepted"] >= 1 for row in rows)
    assert "client 2 (bern) is on node" in (fleet / "run.log").read_text()
    for script in ("server", "run"):  # what they say was sent to files by this test
        (fleet / f"{script}.log").unlink()
    assert open_to_others(fleet) == []
    assert [name for name in names if open_to_others(tmp_path / name / "state")] == []


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex((HOST, port)) == 0


def _strangers(federation: Federation, folder: Path) -> None:
    """Three nodes that may not come in: one with a key that nobody registered, one that trusts another authority, one
    without TLS."""
    key, _ = make_node_key(folder / "strange", "key")
    other = make_certificates(folder / "strange").authority
    trusted = federation.certificates.authority
    ways = {
        "unknown": ("--root-certificates", str(trusted), "--auth-supernode-private-key", str(key)),
        "elsewhere": ("--root-certificates", str(other), "--auth-supernode-private-key", str(key)),
        "plain": ("--insecure",),
    }
    for name, how in ways.items():
        port = ("--host", HOST, "--port", str(free_port()), "--max-retries", "0")
        federation.launch(name, "flower-supernode", "--superlink", federation.address, *how, *port)


def _refused(federation: Federation) -> None:
    signs = {
        "unknown": "Failed to activate SuperNode",
        "elsewhere": "CERTIFICATE_VERIFY_FAILED",
        "plain": "disconnected",
    }
    for name, sign in signs.items():
        assert federation.processes[name].wait(SECONDS) != 0
        assert sign in federation.log(name)


def test_keys_and_certificates_are_their_owners_alone(tmp_path: Path) -> None:
    make_certificates(tmp_path / "fleet" / "certificates", ["fleet.example", "192.0.2.7"])
    _, public = make_node_key(tmp_path / "fleet" / "nodes", "one")
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    for part in ("certificates", "nodes"):
        assert open_to_others(tmp_path / "fleet" / part) == []


def test_what_is_secret_does_not_go_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="another user's, or a link"):
        private_folder(tmp_path / "link")


@root
def test_what_is_secret_does_not_go_into_a_folder_that_another_user_has_put_there(tmp_path: Path) -> None:
    experiment, beside = truths.written(tmp_path, "fedavg"), tmp_path / "run.rehearsal"
    beside.mkdir(0o777)
    os.chown(beside, NOBODY, NOBODY)
    words = ["deploy", "up", "--experiment", str(experiment), "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "another user's, or a link" in done.output.replace("\n", " ")
    assert list(beside.iterdir()) == []
