import hashlib
import json
import math
import os
import signal
import struct
import tomllib
from contextlib import contextmanager

import pytest
import torch

from fedloom.errors import RunError
from fedloom.storage import checkpoint
from fedloom.storage.folder import CONFIG, RunFolder, theta_sha256
from fedloom.storage.history import History
from fedloom.storage.store import MemoryStore


def a_run(path):
    """A finished run with every file that fedloom writes."""
    with RunFolder.create(path) as run:
        run.describe({"seed": 1})
        run.write_json("data.json", {})
        with History(run.file("history.jsonl")) as history:
            history.append({"round": 0})
        with MemoryStore(path) as store:
            store.put(0, {"c": torch.ones(2)})
            for t in range(2):
                checkpoint.save_latest(path, {"memory": store.commit()}, {"round": t})
        run.write_json("summary.json", {"finished": True})
        run.write_text("report.html", "<html>")
    return path


def everything(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_a_new_folder_is_made_with_its_parents(tmp_path):
    with RunFolder.create(tmp_path / "a" / "b") as run:
        assert run.path.is_dir()


def test_an_empty_folder_may_become_a_run(tmp_path):
    with RunFolder.create(tmp_path) as run:
        run.write_text("report.html", "")


def test_a_folder_with_other_files_is_refused_also_with_force_and_left_alone(tmp_path):
    (tmp_path / CONFIG).write_text("mine = 1")
    before = everything(tmp_path)
    for force in (False, True):
        with pytest.raises(RunError, match=r"not empty and no run of fedloom.*--out"):
            RunFolder.create(tmp_path, force)
    (tmp_path / ".lock").write_text("")
    with pytest.raises(RunError, match="no run of fedloom"):
        RunFolder.create(tmp_path, force=True)
    (tmp_path / ".lock").unlink()
    assert everything(tmp_path) == before


def test_a_lock_of_another_program_is_not_taken(tmp_path):
    (tmp_path / ".lock").write_text("of a package manager")
    with pytest.raises(RunError, match="no run of fedloom"):
        RunFolder.create(tmp_path, force=True)
    assert (tmp_path / ".lock").read_text() == "of a package manager"


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RunError, match="run is a file"):
        RunFolder.create(tmp_path / "run")


def test_a_run_that_exists_is_refused_with_all_ways_out(tmp_path):
    before = everything(a_run(tmp_path))
    with pytest.raises(RunError, match=rf"already holds a run.*fedloom resume {tmp_path}.*--out.*--force"):
        RunFolder.create(tmp_path)
    assert everything(tmp_path).keys() == before.keys()
    with RunFolder.open(tmp_path):
        pass


def test_force_removes_what_fedloom_wrote_and_nothing_else(tmp_path):
    a_run(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "memory" / "mine.txt").write_text("mine")
    (tmp_path / "summary.json.tmp").write_text("half")
    with RunFolder.create(tmp_path, force=True):
        assert everything(tmp_path).keys() == {".fedloom", ".lock", "notes.txt", "memory/mine.txt"}


def test_force_leaves_an_empty_folder_of_a_run_without_foreign_files(tmp_path):
    with RunFolder.create(a_run(tmp_path), force=True):
        assert sorted(os.listdir(tmp_path)) == [".fedloom", ".lock"]


def test_a_run_killed_before_its_first_file_may_start_again(tmp_path):
    RunFolder.create(tmp_path).close()
    RunFolder.create(tmp_path).close()
    (tmp_path / ".fedloom").unlink()
    assert (tmp_path / ".lock").read_bytes() == b""
    RunFolder.create(tmp_path).close()


def test_a_run_whose_mark_was_cut_off_by_a_kill_is_still_known(tmp_path):
    (a_run(tmp_path) / ".fedloom").write_text("")
    with RunFolder.open(tmp_path) as run:
        assert run.read_json("summary.json") == {"finished": True}
    (tmp_path / ".fedloom").write_text("")
    RunFolder.create(tmp_path, force=True).close()


def test_a_run_of_an_earlier_fedloom_whose_lock_is_its_mark_can_be_opened_and_replaced(tmp_path):
    (a_run(tmp_path) / ".fedloom").unlink()
    (tmp_path / ".lock").write_text('{"fedloom": "0.1", "pid": 1, "host": "a"}')
    with pytest.raises(RunError, match="already holds a run"):
        RunFolder.create(tmp_path)
    (tmp_path / ".fedloom").unlink()
    with RunFolder.open(tmp_path) as run:
        assert run.read_json("summary.json") == {"finished": True}
    (tmp_path / ".fedloom").unlink()
    with RunFolder.create(tmp_path, force=True):
        assert sorted(os.listdir(tmp_path)) == [".fedloom", ".lock"]


def test_only_a_run_can_be_opened(tmp_path):
    with pytest.raises(RunError, match=r"There is no folder .*nowhere"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"is not a run: it has no config\.toml"):
        RunFolder.open(tmp_path)


def test_two_runs_cannot_write_into_one_folder(tmp_path):
    path = a_run(tmp_path / "run")
    with RunFolder.open(path):
        for again in (RunFolder.open, RunFolder.create, lambda p: RunFolder.create(p, force=True)):
            with pytest.raises(RunError, match=rf"in use: process {os.getpid()} on .* is writing into it.*--out"):
                again(path)
        with RunFolder.open(path, write=False) as looking:
            assert looking.read_json("summary.json") == {"finished": True}
    with RunFolder.open(path):
        pass


fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@contextmanager
def in_a_child(action):
    """Runs an action in a child, which is killed at the end of the block, the action being done before it."""
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kept = action()  # noqa: F841
            os.write(done, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(done)
    try:
        assert os.read(ready, 1) == b"x"
        yield child
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@fork
def test_a_killed_run_leaves_no_lock_behind(tmp_path):
    path = a_run(tmp_path)
    with in_a_child(lambda: RunFolder.open(path)) as child, pytest.raises(RunError, match=f"process {child} on"):
        RunFolder.open(path)
    with RunFolder.open(path):
        pass


@fork
def test_a_worker_that_outlives_its_run_does_not_hold_the_lock(tmp_path):
    path = a_run(tmp_path)
    run = RunFolder.open(path)
    with in_a_child(lambda: None):
        with pytest.raises(RunError, match="in use"):
            RunFolder.open(path)
        run.close()
        with RunFolder.open(path):
            pass


@fork
def test_a_worker_that_outlives_its_killed_run_does_not_hold_the_lock(tmp_path):
    path = a_run(tmp_path)
    told, tell = os.pipe()

    def run_with_a_worker():
        run = RunFolder.open(path)
        worker = os.fork()
        if worker == 0:
            signal.pause()
        os.write(tell, f"{worker:20}".encode())
        return run

    with in_a_child(run_with_a_worker), pytest.raises(RunError, match="in use"):
        RunFolder.open(path)
    worker = int(os.read(told, 20))
    try:
        with RunFolder.open(path):
            os.kill(worker, 0)  # it is still there
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(told)
        os.close(tell)


def test_files_are_replaced_as_a_whole_and_read_back(tmp_path):
    with RunFolder.create(tmp_path) as run:
        for value in ({"a": [1, 2.5, None, "ü"]}, {}):
            run.write_json("summary.json", value)
            assert run.read_json("summary.json") == value
        run.write_json("summary.json", {"a": torch.tensor(0.5), "b": math.nan})
        assert run.read_json("summary.json") == {"a": 0.5, "b": None}
        run.describe({"data": {"name": "digits"}})
        assert tomllib.loads(run.read_text(CONFIG)) == {"data": {"name": "digits"}}
        with pytest.raises(RunError, match=r"summary\.json\.x\[0\] is of type object"):
            run.write_json("summary.json", {"x": [object()]})
        assert run.read_json("summary.json") == {"a": 0.5, "b": None}
        assert not list(tmp_path.glob("*.tmp"))


def test_a_missing_or_damaged_file_is_named(tmp_path):
    with RunFolder.create(tmp_path) as run:
        with pytest.raises(RunError, match=r"summary\.json is missing.*resume"):
            run.read_json("summary.json")
        run.write_text("summary.json", '{"a": ')
        with pytest.raises(RunError, match=r"summary\.json is damaged: Expecting value: line 1 column 7"):
            run.read_json("summary.json")
        (tmp_path / "summary.json").write_bytes(b'{"a": "\xff"}')
        with pytest.raises(RunError, match=r"summary\.json is damaged: byte 7 is no text"):
            run.read_json("summary.json")


def test_a_folder_that_cannot_be_made_is_an_error_of_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="run cannot be used"):
        RunFolder.create(tmp_path / "file" / "run")


def test_the_lock_names_its_holder(tmp_path):
    with RunFolder.create(tmp_path):
        assert json.loads((tmp_path / ".fedloom").read_text())["pid"] == os.getpid()


def test_the_sha256_of_a_vector_is_that_of_its_little_endian_numbers():
    x = torch.tensor([[1.0, -2.5], [0.1, 7.0]], dtype=torch.float64)
    assert theta_sha256(x) == hashlib.sha256(struct.pack("<4d", *x.flatten().tolist())).hexdigest()
    assert theta_sha256(x.T) == theta_sha256(x.T.contiguous()) != theta_sha256(x)
    assert theta_sha256(x.requires_grad_()) == theta_sha256(x.detach().clone())
    assert theta_sha256(torch.tensor([0.0])) != theta_sha256(torch.tensor([-0.0]))
    assert theta_sha256(torch.empty(0)) == hashlib.sha256().hexdigest()
    assert len(theta_sha256(torch.ones(3, dtype=torch.bfloat16))) == 64


def test_a_kill_before_the_config_was_there_leaves_a_folder_that_is_free(tmp_path):
    with RunFolder.create(tmp_path / "run") as folder:
        folder.write_text("config.toml.tmp", "seed = ")
    with RunFolder.create(tmp_path / "run") as folder:
        assert not folder.file("config.toml.tmp").exists()
        folder.describe({"seed": 1})
    with pytest.raises(RunError, match="already holds a run"):
        RunFolder.create(tmp_path / "run")


def test_what_is_left_of_a_run_without_its_config_is_kept_unless_it_is_to_be_replaced(tmp_path):
    with RunFolder.create(tmp_path / "run") as folder:
        folder.write_text("history.jsonl", "")
    with pytest.raises(RunError, match=r"holds what is left of a run.*--force"):
        RunFolder.create(tmp_path / "run")
    with RunFolder.create(tmp_path / "run", force=True) as folder:
        assert not folder.file("history.jsonl").exists()


def test_an_unfinished_file_of_somebody_else_is_not_taken_for_fedlooms(tmp_path):
    (tmp_path / "config.toml.tmp").write_text("mine")
    with pytest.raises(RunError, match="not empty and no run"):
        RunFolder.create(tmp_path)
    assert (tmp_path / "config.toml.tmp").read_text() == "mine"


def test_numbers_of_many_digits_in_a_json_file_are_damage(tmp_path):
    with RunFolder.create(tmp_path) as folder:
        folder.write_text("summary.json", "9" * 5000)
        with pytest.raises(RunError, match=r"summary\.json is damaged"):
            folder.read_json("summary.json")
