"""The command as a process of its own: quick help, Ctrl-C, exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FEDLOOM = (sys.executable, "-m", "fedloom.cli")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def fedloom(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*FEDLOOM, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def test_help_needs_no_heavy_library(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom typer.testing import CliRunner\nfrom fedloom.cli import app\n"
        "assert CliRunner().invoke(app, ['run', '--help']).exit_code == 0\n"
        "heavy = ('torch', 'sklearn', 'pandas', 'plotly', 'pooch', 'scipy')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_refusal_is_on_stderr_with_exit_code_2_and_no_traceback(tmp_path: Path) -> None:
    done = fedloom(tmp_path, "run", "--data", "digitz")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.strip() == "error: --data: data.name = \"digitz\" is no data set; did you mean 'digits'?"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_ctrl_c_saves_says_how_to_resume_and_the_resumed_run_has_the_same_bits(
    tmp_path: Path, call: Callable[..., object], summary: Callable[[str], dict[str, object]]
) -> None:
    flags = ("--data", "digits", "--rounds", 600, "--executor", "serial", "--no-report")
    command = [*FEDLOOM, *map(str, ("run", *flags, "--out", "stopped"))]
    with subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert any(line.startswith("round ") for line in run.stdout)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate()
    assert run.returncode == 130, said
    assert "fedloom resume stopped" in said
    assert "Traceback" not in said
    assert not (tmp_path / "stopped/summary.json").exists()
    call("resume", "stopped", "--no-report")
    call("run", *flags, "--out", "whole")
    assert summary("stopped")["theta_sha256"] == summary("whole")["theta_sha256"]
    assert summary("stopped")["rounds"] == 600


SHORT = ("run", "--data", "quadratics", "--rounds", "3", "--executor", "serial", "--no-report", "--out", "run")


@pytest.mark.skipif(os.name == "nt", reason="a shell of Unix")
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", ">&- 2>&- <&-", "| head -c 1 > /dev/null"])
def test_a_closed_standard_output_does_not_stop_a_run(tmp_path: Path, closed: str) -> None:
    command = f"set -o pipefail; {' '.join([*FEDLOOM, *SHORT])} {closed}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run/summary.json").is_file()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_standard_output_does_not_stop_a_run_and_is_said_at_its_end(tmp_path: Path) -> None:
    command = f"{' '.join([*FEDLOOM, *SHORT])} > /dev/full"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "error: standard output could not be written: No space left on device\n"
    assert (tmp_path / "run/summary.json").is_file()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_thirty_times_ctrl_c_in_a_row_end_a_run_in_words(tmp_path: Path) -> None:
    command = [*FEDLOOM, "run", "--data", "quadratics", "--rounds", "3000", "--executor", "serial", "--out", "run"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert any(line.startswith("round ") for line in run.stdout)
        for _ in range(30):
            run.send_signal(signal.SIGINT)
        _, said = run.communicate()
    assert run.returncode == 130, said
    assert "fedloom resume run" in said
    assert "Traceback" not in said


@pytest.mark.skipif(os.name == "nt", reason="limits of Unix")
@pytest.mark.parametrize("limit", ["-f 0", "-f 2"])
def test_a_limit_of_the_system_is_said_in_words(tmp_path: Path, limit: str) -> None:
    command = f"ulimit {limit}; {' '.join([*FEDLOOM, *SHORT])}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
