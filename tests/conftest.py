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


_FIRST = (
    ("test_rehearsal.py",),
    ("test_ray.py",),
    ("test_hospitals.py",),
    ("test_pages.py", "test_long.py", "test_flat.py"),
)
"""Files with the longest tests, for one worker each: the first three mostly wait for other processes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each worker begins with long tests, so that none of these is left when the others have come to an end.

    Every worker begins with an equal part of the list, in its order, and then takes from the ends of other parts.
    """
    early = [[item for name in names for item in items if item.path.name == name] for names in _FIRST]
    items[:] = [item for item in items if not any(item.path.name in names for names in _FIRST)]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = (len(items) + sum(map(len, early))) // workers
    for number, part in enumerate(early):
        place = number % workers * share
        items[place:place] = part


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


_KNOWN: set[str] = set()
"""Modules that no test wrote; there are thousands."""


@pytest.fixture(autouse=True)
def _modules_of_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that a test wrote is forgotten with it, for the next one may write another of that name."""
    yield
    base = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - _KNOWN:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(base):
            del sys.modules[name]
    _KNOWN.clear()
    _KNOWN.update(sys.modules)
