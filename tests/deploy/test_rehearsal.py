"""Real federations on this machine: TLS, node authentication, and everything killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import truths
from fedloom.deploy import Terms
from fedloom.deploy.federation import Federation
from fedloom.deploy.project import write_app
from fedloom.deploy.security import make_certificates, make_node_key
from fedloom.engine import toml
from fedloom.experiment import Experiment

SECONDS = 600.0


def until(what: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    """Waits for a condition, and for no longer than anybody would."""
    end = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < end, "it never came true"
        assert process is None or process.poll() is None, "the process ended before"
        time.sleep(0.1)


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


def test_a_rehearsal_that_is_interrupted_leaves_no_process_and_goes_on_in_the_same_bits(tmp_path: Path) -> None:
    experiment, out = truths.written(tmp_path, "scaffold"), tmp_path / "run"
    command = [sys.executable, "-m", "fedloom.cli", "deploy", "up", "--nodes", "3", "--experiment", str(experiment)]
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
    expected = Experiment.load(experiment).run(tmp_path / "simulated").summary
    summary = json.loads((out / "summary.json").read_text())
    assert summary["theta_sha256"] == expected["theta_sha256"]
    assert set(summary) == set(expected)
    assert f"After round {expected['rounds']}" in second.stdout


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path / "federation")


def app_of(folder: Path, method: str, **terms: Any) -> tuple[Path, Path]:
    """The app that runs one of the experiments on three nodes, and where the run will be."""
    app, out = folder / f"{method}-app", folder / f"{method}-run"
    experiment = Experiment.load(truths.written(folder, method))
    write_app(app, toml.dumps(experiment.resolved()), Terms(out=str(out), nodes=3, **terms))
    return app, out


def done(federation: Federation, run: int, out: Path) -> dict[str, Any]:
    """The summary of a run, once it has well ended."""
    until(lambda: federation.outcome(run) is not None, federation.processes["superlink"])
    assert federation.outcome(run) == ""
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def history(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]


def test_one_truth_whatever_happens_to_the_server_and_to_strangers(tmp_path: Path, federation: Federation) -> None:
    with federation:
        for client in range(3):
            federation.start_node(f"node-{client}", client=client, state=str(tmp_path / f"state-{client}"))
        app, out = app_of(tmp_path, "fedavg", minimum=3)
        federation.run(app)
        until(lambda: rounds(out) == 1, federation.processes["superlink"])
        federation.kill("superlink")
        federation.start_link()
        _strangers(federation, tmp_path)
        ends = {"fedavg": done(federation, federation.run(app), out)}
        _refused(federation)
        for method in ("fedmeta-maml", "aso-fed"):
            app, out = app_of(tmp_path, method)
            ends[method] = done(federation, federation.run(app), out)
        assert (out / "report.html").is_file()
    until(lambda: not at_work(tmp_path))
    for method, end in ends.items():
        expected = truths.summary(tmp_path, method)
        assert end["executor"] == "flower"
        assert set(end) == set(expected)
        if method in truths.SYNCHRONOUS:
            assert end["theta_sha256"] == expected["theta_sha256"]
            assert end["metrics"] == pytest.approx(expected["metrics"])
    assert [row["accepted"] for row in history(out)[1:]] == [3, 3]
    assert ends["aso-fed"]["server_steps"] == 6


def test_a_node_that_is_killed_at_work_is_named_and_one_that_joins_late_takes_part(
    tmp_path: Path, federation: Federation
) -> None:
    app, out = app_of(tmp_path, "scaffold", deadline=20.0)
    text = (app / "experiment.toml").read_text()
    (app / "experiment.toml").write_text(text.replace("rounds = 2", "rounds = 5").replace("clients = 3", "clients = 4"))
    with federation:
        for client in range(3):
            federation.start_node(f"node-{client}", client=client, state=str(tmp_path / f"state-{client}"))
        run = federation.run(app)
        until(lambda: rounds(out) == 1, federation.processes["superlink"])
        federation.kill("node-1")
        federation.start_node("node-3", client=3, state=str(tmp_path / "state-3"))
        summary = done(federation, run, out)
    rows = history(out)[1:]
    failures = [text for row in rows for text in row.get("failures", [])]
    assert failures[0].startswith("client 1 failed in round 2: ")
    assert all(text.startswith("client 1 ") for text in failures)
    assert all(row["accepted"] >= 2 for row in rows)
    assert rows[-1]["accepted"] == 3
    assert summary["per_client"]["clients"] == [0, 1, 2, 3]
    assert [value is None for value in summary["per_client"]["loss"]] == [False, True, False, False]


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
    from fedloom.deploy.federation import HOST, free_port

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


def test_secrets_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certificates", ["fleet.example", "192.0.2.7"])
    private, public = make_node_key(tmp_path / "nodes", "one")
    for secret in (made.key, made.authority_key, private):
        assert os.stat(secret).st_mode & 0o777 == 0o600
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
