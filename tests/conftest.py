"""For all tests: one torch thread, reproducible hypothesis; random states and modules are left as they were."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

sys.path.append(str(Path(__file__).parent))  # for ``import problems``, in worker processes too

torch.set_num_threads(1)
settings.register_profile("fedloom", deadline=None, derandomize=True, max_examples=40, database=None)
settings.load_profile("fedloom")


_WAITING = ("test_rehearsal.py", "test_ray.py")
"""Tests that mostly wait for other processes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A worker begins with the tests of each of these files, and the others meanwhile compute.

    Every worker begins with an equal part of the list, in its order.
    """
    parts = {name: [item for item in items if item.path.name == name] for name in _WAITING}
    rest = [item for item in items if item.path.name not in _WAITING]
    share = len(items) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = rest
    for number, part in enumerate(parts.values()):
        items[number * share : number * share] = part


@pytest.fixture(autouse=True, scope="session")
def _own_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs are signed by a key of the tests, not by the one of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(autouse=True)
def _global_random_states() -> Iterator[None]:
    ours, numpys, torchs = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(ours)
    np.random.set_state(numpys)
    torch.set_rng_state(torchs)


@pytest.fixture(autouse=True)
def _modules_of_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that a test wrote is forgotten with it, for the next one may write another of that name."""
    yield
    base = str(tmp_path_factory.getbasetemp())
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(base):
            del sys.modules[name]
