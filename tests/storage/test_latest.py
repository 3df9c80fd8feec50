import os

import pytest
import torch

from fedloom.errors import RunError
from fedloom.storage import checkpoint
from fedloom.storage.store import MemoryStore, open_latest

CLIENTS = torch.arange(5)


def go_on(folder, *rounds):
    """Some rounds of a run, of which every client remembers the number, each with its checkpoint."""
    _, store = open_latest(folder)
    with store:
        for t in rounds:
            store.scatter(CLIENTS, {"c": torch.full((5, 30), float(t))})
            checkpoint.save_latest(folder, {"state": {}, "memory": store.commit()}, {"round": t})
            store.landed()


def segment(folder, name):
    """The file that a checkpoint has the memories in."""
    (number,) = checkpoint.load(folder / name).groups["memory"]["segments"].tolist()
    return folder / "memory" / f"segment-{number:06d}.safetensors"


def change_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def everything(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def found(folder, **how):
    """The round that a run would go on from, and the note; what clients remember is of that round."""
    saved, store = open_latest(folder, **how)
    with store:
        columns, known = store.gather(CLIENTS)
    assert bool(known.all())
    assert columns["c"].unique().tolist() == [saved.meta["round"]]
    return saved.meta["round"], saved.note


damages = pytest.mark.parametrize(
    ("damage", "complaint"), [(change_a_byte, "is damaged"), (os.remove, "is missing")], ids=["changed", "removed"]
)


def test_a_folder_without_a_checkpoint_gives_an_empty_store(tmp_path):
    saved, store = open_latest(tmp_path)
    assert saved is None
    assert store.clients().tolist() == []
    store.put(1, {"c": torch.ones(1)})
    assert MemoryStore.restore(tmp_path, store.commit()).clients().tolist() == [1]


def test_the_newest_state_is_taken_when_it_is_whole(tmp_path):
    go_on(tmp_path, 1, 2, 3)
    assert found(tmp_path) == (3, "")


@damages
def test_memories_that_are_damaged_set_their_checkpoint_aside_as_its_own_damage_does(tmp_path, damage, complaint):
    go_on(tmp_path, 1, 2)
    broken, newest = segment(tmp_path, checkpoint.NEWEST), (tmp_path / checkpoint.NEWEST).read_bytes()
    damage(broken)
    completed, note = found(tmp_path)
    assert completed == 1
    assert f"{broken} {complaint}" in note
    assert note.endswith(
        f"{checkpoint.NEWEST} was renamed to {checkpoint.DAMAGED}. The run goes on from {checkpoint.PREVIOUS}."
    )
    assert "start the run again" not in note
    assert (tmp_path / checkpoint.DAMAGED).read_bytes() == newest
    assert not (tmp_path / checkpoint.NEWEST).exists()


@damages
def test_after_a_recovery_the_good_state_is_not_pushed_out_by_the_damaged_one(tmp_path, damage, complaint):
    go_on(tmp_path, 1, 2)
    damage(segment(tmp_path, checkpoint.NEWEST))
    go_on(tmp_path, 2)
    assert found(tmp_path) == (2, "")
    damage(segment(tmp_path, checkpoint.NEWEST))
    assert found(tmp_path)[0] == 1


@damages
def test_damage_of_the_previous_state_does_not_matter_while_the_newest_is_whole(tmp_path, damage, complaint):
    go_on(tmp_path, 1, 2)
    damage(segment(tmp_path, checkpoint.PREVIOUS))
    assert found(tmp_path) == (2, "")


@damages
def test_one_who_only_looks_finds_the_same_and_changes_nothing(tmp_path, damage, complaint):
    go_on(tmp_path, 1, 2)
    damage(segment(tmp_path, checkpoint.NEWEST))
    before = everything(tmp_path)
    completed, note = found(tmp_path, tidy=False)
    assert completed == 1
    assert complaint in note
    assert checkpoint.DAMAGED not in note
    assert everything(tmp_path) == before


@damages
def test_when_no_state_is_whole_the_error_names_both_causes_and_nothing_is_changed(tmp_path, damage, complaint):
    go_on(tmp_path, 1, 2)
    first, second = (segment(tmp_path, name) for name in (checkpoint.PREVIOUS, checkpoint.NEWEST))
    damage(first)
    change_a_byte(second)
    before = everything(tmp_path)
    with pytest.raises(RunError, match=rf"{second} is damaged.*{first} {complaint}.*Start the run again"):
        open_latest(tmp_path)
    change_a_byte(tmp_path / checkpoint.NEWEST)
    with pytest.raises(RunError, match=rf"{checkpoint.NEWEST} is damaged.*{first} {complaint}.*Start the run again"):
        open_latest(tmp_path)
    change_a_byte(tmp_path / checkpoint.NEWEST)
    assert everything(tmp_path) == before


def test_damaged_memories_that_both_checkpoints_need_are_a_clear_error(tmp_path):
    go_on(tmp_path, 1)
    _, store = open_latest(tmp_path)
    checkpoint.save_latest(tmp_path, {"state": {}, "memory": store.commit()}, {"round": 2})
    broken = segment(tmp_path, checkpoint.NEWEST)
    assert broken == segment(tmp_path, checkpoint.PREVIOUS)
    change_a_byte(broken)
    with pytest.raises(RunError, match=rf"No checkpoint of {tmp_path} is usable\. {broken} is damaged"):
        open_latest(tmp_path)


def test_a_recovery_that_was_killed_half_way_is_done_again(tmp_path):
    go_on(tmp_path, 1, 2)
    newest = (tmp_path / checkpoint.NEWEST).read_bytes()
    change_a_byte(segment(tmp_path, checkpoint.NEWEST))
    found(tmp_path)
    (tmp_path / checkpoint.DAMAGED).unlink()
    (tmp_path / checkpoint.NEWEST).write_bytes(newest)  # later segments were removed, but it was not renamed yet
    assert found(tmp_path)[0] == 1
