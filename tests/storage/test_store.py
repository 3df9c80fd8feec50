import math
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedloom.errors import ClientError, RunError
from fedloom.storage import segments as segments_module
from fedloom.storage.store import MemoryStore

FLOATS = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 complex32 complex64 complex128"
WHOLES = "int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool"
DTYPES = [getattr(torch, name) for name in (FLOATS + " " + WHOLES).split()]


def bits(tensor):
    return tensor.dtype, tuple(tensor.shape), bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def content(memory):
    return None if memory is None else {key: bits(tensor) for key, tensor in memory.items()}


def random_bits(dtype, shape):
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (math.prod(shape) * dtype.itemsize,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def segments(folder):
    return sorted((folder / "memory").glob("*"))


def test_a_client_without_a_memory_is_unknown():
    with MemoryStore() as store:
        assert store.get(3) is None
        columns, known = store.gather(torch.tensor([3, 10**6]))
        assert columns == {}
        assert known.tolist() == [False, False]
        assert store.clients().tolist() == []


def test_an_empty_memory_is_a_memory(tmp_path):
    store = MemoryStore(tmp_path)
    store.put(2, {})
    assert store.get(2) == {}
    assert MemoryStore.restore(tmp_path, store.commit()).get(2) == {}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_shape_comes_back_bit_by_bit_from_ram_and_from_disk(tmp_path, dtype):
    store = MemoryStore(tmp_path)
    memories = {}
    for client, shape in enumerate([(), (0,), (1,), (5,), (3, 4), (2, 0), (2, 1, 3), (1500,)]):
        memories[client] = {"a": random_bits(dtype, shape), "ü/%": random_bits(dtype, (2,))}
        store.put(client, memories[client])
    restored = MemoryStore.restore(tmp_path, store.commit())
    for client, memory in memories.items():
        assert content(store.get(client)) == content(memory)
        assert content(restored.get(client)) == content(memory)


def test_what_is_kept_is_a_copy():
    store = MemoryStore()
    tensor = torch.ones(3)
    store.put(0, {"c": tensor})
    tensor += 1
    store.get(0)["c"].zero_()
    store.gather(torch.tensor([0]))[0]["c"].zero_()
    assert store.get(0)["c"].tolist() == [1, 1, 1]


def test_many_clients_are_kept_and_found_as_columns():
    store = MemoryStore()
    c, t = torch.randn(4, 3), torch.tensor([1, 2, 3, 4])
    store.scatter(torch.tensor([7, 2, 9, 4]), {"c": c, "t": t})
    columns, known = store.gather(torch.tensor([9, 1, 7, 2]))
    assert known.tolist() == [True, False, True, True]
    assert torch.equal(columns["c"], c[[2, 0, 1]])
    assert columns["t"].tolist() == [3, 1, 2]
    assert content(store.get(4)) == content({"c": c[3], "t": t[3]})
    assert store.clients().tolist() == [2, 4, 7, 9]


def test_tensors_of_unequal_length_are_padded_with_zeros_and_cut_again(tmp_path):
    store = MemoryStore(tmp_path)
    lengths = torch.tensor([3, 0, 5, 1, 1200])
    padded = torch.full((5, 1200, 2), 7.0)
    store.scatter(torch.arange(5), {"a": padded, "s": torch.arange(5)}, {"a": lengths})
    for source in (store, MemoryStore.restore(tmp_path, store.commit())):
        assert [len(source.get(client)["a"]) for client in range(5)] == lengths.tolist()
        columns, _ = source.gather(torch.tensor([2, 3, 1, 0]))
        assert columns["a"].shape == (4, 5, 2)
        assert columns["a"][:, :, 0].tolist() == [[7] * n + [0] * (5 - n) for n in (5, 1, 0, 3)]
        assert columns["s"].tolist() == [2, 3, 1, 0]
        assert source.gather(torch.arange(5))[0]["a"].sum() == 7 * 2 * lengths.sum()


def test_a_memory_may_change_its_shape_and_its_keys():
    store = MemoryStore()
    for memory in ({"a": torch.ones(3)}, {"a": torch.ones(9)}, {"b": torch.ones(2)}, {}, {"a": torch.ones(3)}):
        store.put(1, memory)
        assert content(store.get(1)) == content(memory)


def test_ram_stays_within_the_limit_and_nothing_is_forgotten(tmp_path):
    limit = 40_000
    store = MemoryStore(tmp_path, limit)
    for client in range(200):
        store.put(client, {"c": torch.full((100 + client % 7,), float(client))})
        assert store.bytes_in_ram <= limit
    assert store.clients().tolist() == list(range(200))
    for client in range(200):
        assert content(store.get(client)) == content({"c": torch.full((100 + client % 7,), float(client))})
    columns, known = store.gather(torch.arange(199, -1, -1))
    assert bool(known.all())
    assert columns["c"][:, 0].tolist() == list(range(199, -1, -1))


def test_a_stack_larger_than_the_limit_is_kept_in_pieces(tmp_path):
    store = MemoryStore(tmp_path, limit_bytes=10_000)
    c = torch.randn(50, 300)
    store.scatter(torch.arange(50), {"c": c})
    assert store.bytes_in_ram <= 10_000
    assert torch.equal(store.gather(torch.arange(50))[0]["c"], c)


def test_a_memory_larger_than_the_limit_is_kept_alone(tmp_path):
    store = MemoryStore(tmp_path, limit_bytes=1_000)
    large = [torch.randn(5_000) for _ in range(3)]
    for client, tensor in enumerate(large):
        store.put(client, {"c": tensor})
        assert store.bytes_in_ram < 25_000
    assert all(torch.equal(store.get(client)["c"], tensor) for client, tensor in enumerate(large))


def test_what_was_used_last_stays_in_ram(tmp_path):
    store = MemoryStore(tmp_path, limit_bytes=10_000)
    for client in range(8):
        store.put(client, {"c": torch.full((256,), float(client))})
    store.get(0)
    for client in range(8, 12):
        store.get(0)
        store.put(client, {"c": torch.full((256,), float(client))})
    shutil.rmtree(tmp_path / "memory")
    assert store.get(0)["c"][0] == 0
    with pytest.raises(RunError, match=r"segment-.*cannot be used"):
        store.get(1)


def test_without_a_folder_the_files_are_temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = MemoryStore(limit_bytes=1_000)
    for client in range(10):
        store.put(client, {"c": torch.randn(100)})
    (folder,) = tmp_path.iterdir()
    assert list(folder.glob("segment-*.safetensors"))
    store.close()
    assert not folder.exists()


def test_a_temporary_folder_is_made_only_when_it_is_needed_and_goes_with_the_store(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = MemoryStore(limit_bytes=1_000)
    store.put(0, {"c": torch.ones(2)})
    assert not list(tmp_path.iterdir())
    store.put(1, {"c": torch.ones(5_000)})
    assert list(tmp_path.iterdir())
    del store
    assert not list(tmp_path.iterdir())


def test_a_closed_store_says_so():
    store = MemoryStore()
    store.put(1, {"c": torch.ones(1)})
    store.close()
    for action in (lambda: store.get(1), lambda: store.put(1, {}), store.commit):
        with pytest.raises(RunError, match="closed"):
            action()


def test_the_index_is_small_however_many_clients_there_are(tmp_path):
    store = MemoryStore(tmp_path)
    store.scatter(torch.arange(20_000), {"c": torch.zeros(20_000, 2)})
    assert sum(tensor.numel() for tensor in store.commit().values()) < 10


def test_many_commits_leave_few_files_and_little_waste(tmp_path):
    store = MemoryStore(tmp_path)
    for t in range(60):
        store.scatter(torch.arange(20) + 3 * (t % 20), {"c": torch.full((20, 64), float(t))})
        store.commit()
        store.landed()
    live = 20 * 64 * 4 * 4
    assert len(segments(tmp_path)) < 12
    assert sum(path.stat().st_size for path in segments(tmp_path)) < 8 * live


def test_large_segments_are_rewritten_only_once_they_are_mostly_out_of_date(tmp_path, monkeypatch):
    monkeypatch.setattr(segments_module, "_LARGE", 1_000)
    store = MemoryStore(tmp_path)

    def rewrite(clients):
        store.scatter(torch.arange(clients), {"c": torch.randn(clients, 64)})
        store.commit()
        store.landed()
        store.commit()
        store.landed()
        return [path.name[8:14] for path in segments(tmp_path)]

    assert rewrite(20) == ["000000"]
    assert rewrite(9) == ["000000", "000001"]
    assert rewrite(11) == ["000002"]
    assert store.clients().tolist() == list(range(20))


def test_spilling_without_commits_leaves_few_files_and_little_waste(tmp_path):
    store = MemoryStore(tmp_path, limit_bytes=20_000)
    for t in range(200):
        store.scatter(torch.randperm(60)[:20], {"c": torch.full((20, 64), float(t))})
        assert sum(path.stat().st_size for path in segments(tmp_path)) < 3 * 60 * 64 * 4
    assert len(segments(tmp_path)) < 4


def test_a_commit_without_changes_writes_nothing(tmp_path):
    store = MemoryStore(tmp_path)
    store.put(1, {"c": torch.ones(4)})
    first = store.commit()
    files = {path: path.stat().st_mtime_ns for path in segments(tmp_path)}
    second = store.commit()
    assert {path: path.stat().st_mtime_ns for path in segments(tmp_path)} == files
    assert content(first) == content(second)


def test_segments_written_after_the_checkpoint_are_removed_by_restore(tmp_path):
    store = MemoryStore(tmp_path, limit_bytes=2_000)
    store.put(1, {"c": torch.ones(4)})
    index = store.commit()
    store.landed()
    kept = segments(tmp_path)
    for client in range(2, 30):
        store.put(client, {"c": torch.ones(100)})
    store.commit()
    assert len(segments(tmp_path)) > len(kept)
    restored = MemoryStore.restore(tmp_path, index)
    assert segments(tmp_path) == kept
    assert restored.clients().tolist() == [1]


def test_the_segments_of_the_last_two_checkpoints_are_kept_until_a_newer_one_has_landed(tmp_path):
    store = MemoryStore(tmp_path)
    values = []
    for t in range(6):
        store.scatter(torch.arange(10), {"c": torch.full((10, 8), float(t))})
        values.append((store.commit(), float(t)))
        for index, value in values[-3:]:
            copy = tmp_path.with_name(f"copy-{t}-{value}")
            shutil.copytree(tmp_path, copy)
            assert MemoryStore.restore(copy, index).get(3)["c"][0] == value
        store.landed()


def test_commits_whose_checkpoint_never_landed_do_not_cost_the_ones_that_did(tmp_path):
    store = MemoryStore(tmp_path)
    store.put(1, {"c": torch.zeros(50)})
    index = store.commit()
    store.landed()
    for t in range(1, 6):
        store.put(1, {"c": torch.full((50,), float(t))})
        store.commit()
    assert MemoryStore.restore(tmp_path, index).get(1)["c"].tolist() == [0] * 50


def committed(folder):
    store = MemoryStore(folder)
    store.scatter(torch.arange(5), {"c": torch.randn(5, 30)})
    return store.commit()


def test_a_damaged_segment_is_named(tmp_path):
    index = committed(tmp_path)
    (path,) = segments(tmp_path)
    whole = path.read_bytes()
    for place in (0, 40, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RunError, match=r"segment-000000\.safetensors.*start the run again"):
            MemoryStore.restore(tmp_path, index)
    path.write_bytes(whole[:-1])
    with pytest.raises(RunError, match=r"segment-000000\.safetensors is cut off"):
        MemoryStore.restore(tmp_path, index)


def test_a_missing_segment_is_named(tmp_path):
    index = committed(tmp_path)
    segments(tmp_path)[0].unlink()
    with pytest.raises(RunError, match=r"segment-000000\.safetensors is missing"):
        MemoryStore.restore(tmp_path, index)


def test_a_segment_of_another_run_is_refused(tmp_path):
    index = committed(tmp_path / "a")
    committed(tmp_path / "b")
    shutil.copy(segments(tmp_path / "b")[0], segments(tmp_path / "a")[0])
    with pytest.raises(RunError, match="of another run"):
        MemoryStore.restore(tmp_path / "a", index)


def test_wrong_use_is_explained():
    store = MemoryStore()
    with pytest.raises(ClientError, match="twice"):
        store.scatter(torch.tensor([1, 1]), {"c": torch.ones(2, 3)})
    with pytest.raises(ClientError, match="count from 0; -2"):
        store.get(-2)
    with pytest.raises(ClientError, match=r"'c' has shape \(3, 2\) for 2 clients"):
        store.scatter(torch.tensor([1, 2]), {"c": torch.ones(3, 2)})
    with pytest.raises(ClientError, match=r"lengths of the memory 'c'.*from 0 to 3"):
        store.scatter(torch.tensor([1, 2]), {"c": torch.ones(2, 3)}, {"c": torch.tensor([1, 4])})
    with pytest.raises(ClientError, match=r"\['d'\], which the memory does not have"):
        store.scatter(torch.tensor([1]), {"c": torch.ones(1, 3)}, {"d": torch.tensor([1])})
    store.put(1, {"c": torch.ones(2)})
    store.put(2, {"c": torch.ones(2, dtype=torch.int32)})
    with pytest.raises(ClientError, match=r"c torch.float32.*c torch.int32"):
        store.gather(torch.tensor([1, 2]))


CLIENTS = st.integers(0, 12)
SHAPES = st.sampled_from([(), (0,), (3,), (20,), (2, 5), (1030,)])
KINDS = st.sampled_from([torch.float32, torch.bool, torch.complex128])
MEMORIES = st.dictionaries(st.sampled_from("abc"), st.tuples(KINDS, SHAPES))


class AgainstADict(RuleBasedStateMachine):
    """The store does what a dict does, and comes back from a kill in the state of any checkpoint that may be there."""

    @initialize(limit=st.sampled_from([1, 700, 3_000, 1 << 20]))
    def start(self, limit):
        self.folder, self.limit = Path(tempfile.mkdtemp()), limit
        self.store, self.model = MemoryStore(self.folder, limit), {}
        self.landed, self.pending = [], []

    @rule(client=CLIENTS, memory=MEMORIES)
    def put(self, client, memory):
        self.model[client] = {key: random_bits(*spec) for key, spec in memory.items()}
        self.store.put(client, self.model[client])

    @rule(lengths=st.dictionaries(CLIENTS, st.integers(0, 40), min_size=1))
    def scatter(self, lengths):
        clients = torch.tensor(list(lengths))
        own = torch.tensor(list(lengths.values()))
        columns = {"a": torch.randn(len(clients), 40, 2), "s": torch.randn(len(clients))}
        self.store.scatter(clients, columns, {"a": own})
        for i, (client, length) in enumerate(lengths.items()):
            self.model[client] = {"a": columns["a"][i, :length], "s": columns["s"][i]}

    @rule(clients=st.lists(CLIENTS))
    def gather(self, clients):
        alike = [c for c in clients if c not in self.model or self.model[c].keys() == {"a", "s"}]
        columns, known = self.store.gather(torch.tensor(alike, dtype=torch.int64))
        assert known.tolist() == [client in self.model for client in alike]
        for i, client in enumerate(c for c in alike if c in self.model):
            a = self.model[client]["a"]
            assert torch.equal(columns["a"][i, : len(a)], a)
            assert not columns["a"][i, len(a) :].any()
            assert torch.equal(columns["s"][i], self.model[client]["s"])

    @rule()
    def commit(self):
        self.pending.append((self.store.commit(), dict(self.model)))

    @precondition(lambda self: self.pending)
    @rule()
    def checkpoint_has_landed(self):
        self.store.landed()
        self.landed = [*self.landed[-1:], self.pending[-1]]
        self.pending = []

    @precondition(lambda self: self.landed or self.pending)
    @rule(data=st.data())
    def killed_and_restored(self, data):
        states = self.landed + self.pending
        chosen = data.draw(st.integers(0, len(states) - 1))
        index, model = states[chosen]
        self.store, self.model = MemoryStore.restore(self.folder, index, self.limit), dict(model)
        earlier = states[:chosen] if chosen < len(self.landed) else self.landed
        self.landed, self.pending = [*earlier[-1:], states[chosen]], []

    @invariant()
    def equal(self):
        if hasattr(self, "store"):
            assert self.store.clients().tolist() == sorted(self.model)
            for client, memory in self.model.items():
                assert content(self.store.get(client)) == content(memory)

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)


TestAgainstADict = AgainstADict.TestCase
TestAgainstADict.settings = settings(deadline=None, max_examples=50, stateful_step_count=20)
