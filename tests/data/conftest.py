from __future__ import annotations

import functools
import gzip
import http.server
import importlib.util
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.data.table import Table

torch.set_num_threads(1)

_spec = importlib.util.spec_from_file_location("real_data", Path(__file__).parents[1] / "real_data.py")
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests neither read nor write the user's cache and never leave this machine."""
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDLOOM_MIRROR", "http://127.0.0.1:9")


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes the named sets available, or skips the test; returns their folder."""

    def available(*names: str) -> Path:
        folder: Path = _module.real_data(*names)
        monkeypatch.setenv("FEDLOOM_DATA", str(folder))
        return folder

    return available


@pytest.fixture
def own_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder that is $FEDLOOM_DATA."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FEDLOOM_DATA", str(folder))
    return folder


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], str]]:
    """Serves a folder over HTTP and makes it the mirror."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(folder: Path) -> str:
        handler = functools.partial(_Quiet, directory=str(folder))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("FEDLOOM_MIRROR", url)
        monkeypatch.delenv("FEDLOOM_DATA", raising=False)
        return url

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def _write_idx(path: Path, values: np.ndarray) -> Path:
    kind = {"uint8": 8, "int32": 12}[values.dtype.name]
    header = struct.pack(f">4B{values.ndim}I", 0, 0, kind, values.ndim, *values.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(header + values.astype(values.dtype.newbyteorder(">")).tobytes()))
    return path


@pytest.fixture(scope="session")
def write_idx() -> Callable[[Path, np.ndarray], Path]:
    """Writes an idx file in gzip, as MNIST is published."""
    return _write_idx


@pytest.fixture
def small_mnist(own_data: Path) -> Path:
    """Six training and four test images in MNIST's format; pixel values say which image it is."""
    folder = own_data / "mnist"
    for split, first, count in (("train", 0, 6), ("t10k", 6, 4)):
        pixels = np.arange(first, first + count, dtype=np.uint8)[:, None, None] * np.ones((1, 28, 28), dtype=np.uint8)
        _write_idx(folder / f"{split}-images-idx3-ubyte.gz", pixels)
        _write_idx(folder / f"{split}-labels-idx1-ubyte.gz", np.arange(first, first + count, dtype=np.uint8))
    return folder


def _labelled(labels: list[int] | np.ndarray, classes: int | None = None, **parts: object) -> Table:
    y = torch.tensor(np.asarray(labels), dtype=torch.int64)
    names = tuple(f"c{k}" for k in range(classes if classes is not None else int(y.max()) + 1))
    x = torch.arange(len(y), dtype=torch.float32).unsqueeze(1)
    return Table("labelled", x, y, "classification", names, **parts)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def labelled() -> Callable[..., Table]:
    """Makes a table whose only feature is the row's number."""
    return _labelled
