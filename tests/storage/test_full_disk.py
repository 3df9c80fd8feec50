import os
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from fedloom.errors import RunError
from fedloom.storage import checkpoint
from fedloom.storage.folder import RunFolder
from fedloom.storage.history import History
from fedloom.storage.store import MemoryStore

resource = pytest.importorskip("resource")

SMALL = {"state": {"x": torch.arange(5)}}
LARGE = {"state": {"x": torch.zeros(10_000)}}
META = {"round": 7}


@contextmanager
def files_of_at_most(size):
    """A disk that is full for every file of more bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_file_stays_as_it_was(tmp_path):
    path = tmp_path / "c"
    checkpoint.save(path, SMALL, META)
    with (
        files_of_at_most(20_000),
        pytest.raises(RunError, match=r"disk is full.*/c could not.*The previous c is still"),
    ):
        checkpoint.save(path, LARGE, META)
    assert checkpoint.load(path).meta == META
    assert os.listdir(tmp_path) == ["c"]


def test_the_newest_checkpoint_of_a_folder_stays(tmp_path):
    checkpoint.save_latest(tmp_path, SMALL, META)
    message = r"disk is full.*The previous checkpoint, .*checkpoint\.safetensors, is still there.*resume"
    with files_of_at_most(20_000), pytest.raises(RunError, match=message):
        checkpoint.save_latest(tmp_path, LARGE, META)
    assert os.listdir(tmp_path) == [checkpoint.NEWEST]
    assert checkpoint.load_latest(tmp_path).meta == META


def spill(store):
    for client in range(12, 24):
        store.put(client, {"c": torch.zeros(1000)})


@pytest.mark.parametrize("action", [MemoryStore.commit, spill])
def test_no_memory_of_a_client_is_lost(tmp_path, action):
    store = MemoryStore(tmp_path, limit_bytes=50_000)
    values = {client: torch.full((1000,), float(client)) for client in range(12)}
    for client, value in values.items():
        store.put(client, {"c": value})
    before = os.listdir(tmp_path / "memory") if (tmp_path / "memory").exists() else []
    message = r"disk is full.*segment-\d+\.safetensors could not be written.*checkpoint"
    with files_of_at_most(2_000), pytest.raises(RunError, match=message):
        action(store)
    assert os.listdir(tmp_path / "memory") == before
    for client, value in values.items():
        assert torch.equal(store.get(client)["c"], value)
    restored = MemoryStore.restore(tmp_path, store.commit())
    for client, value in values.items():
        assert torch.equal(restored.get(client)["c"], value)


def test_the_history_keeps_whole_lines_and_goes_on(tmp_path):
    path = tmp_path / "history.jsonl"
    history = History(path)
    history.append({"round": 0})
    with files_of_at_most(path.stat().st_size + 8), pytest.raises(RunError, match=r"disk is full.*history\.jsonl"):
        history.append({"round": 1, "text": "a" * 100})
    history.append({"round": 1})
    assert History.read(path).rows == [{"round": 0}, {"round": 1}] == history.rows


def test_a_file_of_the_run_stays_as_it_was(tmp_path):
    with RunFolder.create(tmp_path / "run") as run:
        run.write_json("summary.json", {"a": 1})
        with files_of_at_most(2_000), pytest.raises(RunError, match=r"disk is full.*summary\.json"):
            run.write_json("summary.json", {"a": "b" * 5_000})
        assert run.read_json("summary.json") == {"a": 1}
        assert not (run.path / "summary.json.tmp").exists()


ON_A_FULL_DISK = """
    import os, sys
    from pathlib import Path
    import torch
    from fedloom.storage import checkpoint
    from fedloom.storage.history import History
    from fedloom.storage.store import MemoryStore
    from fedloom.errors import RunError

    disk = Path(sys.argv[1])
    store, history = MemoryStore(disk), History(disk / "history.jsonl")
    store.put(3, {"c": torch.arange(100.0)})
    history.append({"round": 1})
    checkpoint.save_latest(disk, {"memory": store.commit()}, {"round": 1})
    store.landed()
    filler = os.open(disk / "filler", os.O_CREAT | os.O_WRONLY)
    for size in (65536, 1):
        try:
            while True:
                os.write(filler, b"x" * size)
        except OSError:
            pass

    def refused(action, *arguments):
        try:
            action(*arguments)
        except RunError as error:
            assert "disk is full" in str(error), error
            assert error.__cause__.strerror == "No space left on device"
        else:
            raise AssertionError(f"{action} did not notice the full disk")

    store.put(3, {"c": torch.ones(50_000)})
    refused(store.commit)
    refused(checkpoint.save_latest, disk, {"state": {"x": torch.ones(50_000)}}, {"round": 2})
    refused(lambda: [history.append({"round": 2, "text": "a" * 5000}) for _ in range(3)])
    assert set(os.listdir(disk)) == {"filler", "memory", "history.jsonl", checkpoint.NEWEST}
    os.unlink(disk / "filler")
    os.close(filler)
    found = checkpoint.load_latest(disk)
    assert found.meta == {"round": 1}
    assert torch.equal(MemoryStore.restore(disk, found.groups["memory"]).get(3)["c"], torch.arange(100.0))
    assert History.read(disk / "history.jsonl").rows == history.rows
    checkpoint.save_latest(disk, {"memory": store.commit()}, {"round": 2})
    assert torch.equal(store.get(3)["c"], torch.ones(50_000))
    print("all is well")
"""


def test_a_real_disk_without_space_loses_nothing(tmp_path):
    mount = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=256k none "$0" && exec "$@"', str(tmp_path)]
    try:
        subprocess.run([*mount, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system does not let tests mount a small disk")
    program = tmp_path.with_suffix(".py")
    program.write_text(textwrap.dedent(ON_A_FULL_DISK))
    source = str(Path(checkpoint.__file__).parents[2])
    done = subprocess.run(
        [*mount, sys.executable, str(program), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "all is well\n", done.stderr
