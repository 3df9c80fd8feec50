"""Real data for tests: a folder of published files, or None with the reason when this machine has none.

``$FEDLOOM_DATA`` is used when it holds the sets. Otherwise a data bundle beside the repository is unpacked, only the
sets that are asked for, into a temporary folder that later test runs find again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

BUNDLE = Path(__file__).resolve().parents[2] / "shared" / "data" / "unpack.py"
UNPACKED = Path(tempfile.gettempdir()) / "fedloom-test-data"


def real_data(*names: str) -> Path:
    """A folder that holds these sets; the test is skipped when there is none."""
    own = os.environ.get("FEDLOOM_DATA")
    if own and _holds(Path(own), names):
        return Path(own)
    if not BUNDLE.is_file() and not _holds(UNPACKED, names):
        pytest.skip(f"needs {', '.join(names)}: set FEDLOOM_DATA to a folder of published files")
    for name in names:
        if not (UNPACKED / name).is_dir():
            _unpack(name)
    return UNPACKED


def _holds(folder: Path, names: tuple[str, ...]) -> bool:
    return all((folder / name).is_dir() for name in names)


def _unpack(name: str) -> None:
    """Unpack into a folder of our own, then rename: two test processes may do this at once."""
    UNPACKED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=UNPACKED) as part:
        done = subprocess.run([sys.executable, str(BUNDLE), part, name], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{name} could not be unpacked: {done.stderr.strip().splitlines()[-1]}")
        try:
            (Path(part) / name).rename(UNPACKED / name)
        except OSError:
            if not (UNPACKED / name).is_dir():
                raise
