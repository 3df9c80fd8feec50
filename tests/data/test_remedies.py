"""A public part of the rows, and rare labels that are filled up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedloom
from fedloom.data import Scaling, describe, federate, from_arrays
from fedloom.data.federate import divide
from fedloom.data.table import Table
from fedloom.errors import ConfigError
from fedloom.federation.data import FederatedData
from fedloom.federation.randomness import Draw

Labelled = Callable[..., Table]


def rows_of(data: FederatedData, split: str, client: int) -> list[int]:
    return data.splits[split][client].tolist()


def shared_out(labelled: Labelled, **how: object) -> tuple[FederatedData, FederatedData]:
    """60 rows of three classes, six clients of at most two of them; without public rows, and with."""
    table = labelled([k % 3 for k in range(60)])
    both = [federate(table, clients=6, partition="classes", seed=3, **{**how, "public": p}) for p in (None, 0.1)]  # type: ignore[arg-type]
    return both[0], both[1]


@pytest.mark.parametrize("support", [0.5, None])
def test_every_source_client_trains_on_its_own_rows_and_on_the_public_ones(
    labelled: Labelled, support: float | None
) -> None:
    before, after = shared_out(labelled, support=support)
    assert after.public is not None
    public = set(after.public.tolist())
    trained = {row for client in range(6) for row in rows_of(before, "train", client)}
    assert len(public) == round(0.1 * len(trained))
    assert public < trained
    for client in range(6):
        rows = rows_of(after, "train", client)
        assert len(rows) == len(set(rows))
        assert set(rows) == set(rows_of(before, "train", client)) | public
        assert rows_of(after, "test", client) == rows_of(before, "test", client)
        assert not public & set(rows_of(after, "test", client))
        if support is not None:
            halves = [rows_of(after, half, client) for half in ("support", "query")]
            assert sorted(halves[0] + halves[1]) == sorted(rows)
            assert all(set(half) & public for half in halves)


def test_target_clients_neither_give_nor_get_public_rows(labelled: Labelled) -> None:
    before, after = shared_out(labelled, target=0.34)
    assert after.public is not None
    (targets,) = (after.with_role(1).tolist(),)
    assert len(targets) == 2
    for client in targets:
        assert rows_of(after, "train", client) == rows_of(before, "train", client)
        assert not set(after.public.tolist()) & set(rows_of(after, "train", client))


def test_a_pool_has_every_row_once(labelled: Labelled) -> None:
    before, after = (data.with_pool() for data in shared_out(labelled))
    for split in ("train", "support", "query"):
        rows = rows_of(after, split, 6)
        assert len(rows) == len(set(rows))
    assert sorted(rows_of(after, "train", 6)) == sorted(rows_of(before, "train", 6))


def test_the_scale_is_that_of_the_rows_before_any_was_shared() -> None:
    random = np.random.default_rng(0)
    table = from_arrays(random.normal(size=(40, 2)), random.normal(size=40), clients=np.arange(40) % 4)
    one, other = (federate(replace(table, scaling=Scaling()), public=share) for share in (None, 0.5))
    assert torch.equal(one.x, other.x)


def test_what_it_costs_is_said_in_rows_and_bytes(labelled: Labelled) -> None:
    _, after = shared_out(labelled)
    assert after.public is not None
    rows = len(after.public)
    size = 4 + 8  # one float32 feature, one int64 label
    assert after.shared == {"rows": rows, "clients": 6, "bytes_up": rows * size, "bytes_down": rows * size * 5}
    (note,) = (note for note in after.notes if "public" in note)
    assert note in (describe(after).table().caption or "")
    assert note.startswith(f"{rows} training rows are public: 6 clients train on them")
    assert note.endswith("all clients know them")


def test_a_model_of_one_class_a_client_learns_from_public_rows_what_it_never_saw() -> None:
    """Known answer: the run's summary has the cost, its notes say it, and nothing is tested that was public."""
    data = federate("digits", clients=10, partition="classes", classes_per_client=1, public=0.05)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    run = fedloom.train(problem, "local:lr=0.1", rounds=3, progress=False)
    assert run.summary["public"] == data.shared
    assert any("training rows are public" in note for note in run.notes)
    alone = federate("digits", clients=10, partition="classes", classes_per_client=1)
    assert (
        "public"
        not in fedloom.train(fedloom.Problem(alone, problem.model), "local:lr=0.1", rounds=1, progress=False).summary
    )


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_a_share_that_cannot_be_is_refused(labelled: Labelled, share: float) -> None:
    with pytest.raises(ConfigError, match=r"public = .* cannot be; give a share above 0 and below 1"):
        federate(labelled([0, 1] * 10), clients=2, public=share)


def test_parties_that_share_their_rows_have_none_to_give() -> None:
    with pytest.raises(ConfigError, match="no rows of their own to share or to repeat"):
        federate("breast-cancer", clients=3, partition="features", public=0.1)


# Filling


@given(st.lists(st.integers(0, 3), min_size=4, max_size=40), st.integers(0, 5))
def test_each_label_that_a_client_has_comes_as_often_as_its_most_frequent_one(labels: list[int], seed: int) -> None:
    y = torch.tensor(labels)
    x = torch.arange(len(y), dtype=torch.float32).unsqueeze(1)
    table = Table("filled", x, y, "classification", ("a", "b", "c", "d"))
    plain, full = (federate(table, clients=2, seed=seed, test=0.0, fill=fill) for fill in (False, True))
    added = 0
    for client in range(2):
        before = torch.bincount(y[plain.splits["train"][client]], minlength=4)
        rows = full.splits["train"][client]
        after = torch.bincount(y[rows], minlength=4)
        assert torch.equal(after, torch.where(before > 0, before.max(), 0))
        assert set(rows.tolist()) == set(rows_of(plain, "train", client))
        times = torch.bincount(rows, minlength=len(y))[plain.splits["train"][client]]
        for label in range(4):
            own = times[y[plain.splits["train"][client]] == label]
            assert len(own) == 0 or int(own.max() - own.min()) <= 1  # no row comes much more often than another
        assert sorted(rows_of(full, "support", client) + rows_of(full, "query", client)) == sorted(rows.tolist())
        added += len(rows) - len(plain.splits["train"][client])
    assert full.repeated == added
    assert bool(full.notes) == bool(added)


def test_public_rows_are_filled_up_with_the_others(labelled: Labelled) -> None:
    table = labelled([k % 5 for k in range(100)])
    data = federate(table, clients=5, partition="classes", classes_per_client=1, public=0.1, fill=True)
    for client in range(5):
        counts = torch.bincount(table.y[data.splits["train"][client]], minlength=5)
        assert len(set(counts[counts > 0].tolist())) == 1
        assert int((counts > 0).sum()) > 1


def test_filling_needs_classes_and_all_rows_at_once() -> None:
    with pytest.raises(ConfigError, match="fill = true needs a class for each row"):
        federate("diabetes", fill=True)
    data = federate("digits", clients=5, partition="dirichlet", alpha=0.3, fill=True)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    with pytest.raises(ConfigError, match=r"leave data\.fill or the stream out"):
        fedloom.train(problem, "fedavg", rounds=1, stream=fedloom.Stream(duration=5))


def test_public_rows_arrive_with_the_others_but_cannot_drift() -> None:
    data = federate("digits", clients=5, partition="classes", public=0.1)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    run = fedloom.train(problem, "fedmeta-maml", rounds=2, stream=fedloom.Stream(start=1.0, rate=0), progress=False)
    still = fedloom.train(problem, "fedmeta-maml", rounds=2, progress=False)
    assert run.summary["theta_sha256"] == still.summary["theta_sha256"]
    with pytest.raises(ConfigError, match=r"leave data\.public or the drift out"):
        fedloom.train(problem, "fedavg", rounds=1, stream=fedloom.Stream(duration=5, drift=0.5))


def test_nothing_changes_where_nothing_is_asked_for(labelled: Labelled) -> None:
    divided = divide(labelled([0, 1, 2] * 9), clients=3)
    assert (divided.public, divided.fill, divided.augment) == (None, False, None)
    assert divided.draw == Draw(0)
