from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from fedloom.data import Scaling, federate, from_arrays, from_clients, load_file
from fedloom.data.table import Table
from fedloom.errors import ConfigError, DataError
from fedloom.federation.data import SOURCE, TARGET, FederatedData

NAN = float("nan")


def table(rows: int = 120, clients: int = 4, windows: bool = False, **scaling: Any) -> Table:
    """Numbers of many sizes, whose level differs from client to client and grows from row to row."""
    random = np.random.default_rng(3)
    owner = np.arange(rows) % clients
    shape = (rows, 5, 3) if windows else (rows, 3)
    x = random.normal(size=shape) * [1.0, 100.0, 0.01] + [3.0, -500.0, 0.0]
    x += owner.reshape(-1, *[1] * (len(shape) - 1)) + np.linspace(0, 5, rows).reshape(-1, *[1] * (len(shape) - 1))
    y = np.column_stack([x.reshape(rows, -1).sum(1), 1000 * random.normal(size=rows)])
    made = from_arrays(x, y, owner, time=np.arange(rows), task="regression", name="made")
    return replace(made, scaling=Scaling(**scaling))


def trained(data: FederatedData, client: int | None = None) -> torch.Tensor:
    rows = range(data.clients) if client is None else [client]
    return torch.cat([data.splits["train"][k] for k in rows])


SCIKIT = {"standard": StandardScaler, "min-max": MinMaxScaler}


@pytest.mark.parametrize("kind", SCIKIT)
@pytest.mark.parametrize("part", ["x", "y"])
def test_all_rows_are_scaled_by_scikit_learns_scaler_of_the_training_rows(kind: str, part: str) -> None:
    raw = table(kind=kind)
    data = federate(raw)
    values = getattr(raw, part).double().numpy()
    expected = SCIKIT[kind]().fit(values[trained(data)]).transform(values)
    np.testing.assert_allclose(getattr(data, part).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert f"features and targets {'standardised' if kind == 'standard' else 'scaled to 0…1'}" in data.notes[-1]


@pytest.mark.parametrize("kind", SCIKIT)
def test_each_client_can_be_scaled_by_its_own_training_rows(kind: str) -> None:
    raw = table(kind=kind, by="client")
    data = federate(raw)
    for client in range(data.clients):
        own = torch.cat([data.splits[split][client] for split in ("train", "test")])
        scaler = SCIKIT[kind]().fit(raw.x.double().numpy()[trained(data, client)])
        np.testing.assert_allclose(data.x[own].numpy(), scaler.transform(raw.x[own].double()), rtol=1e-4, atol=1e-5)
    assert data.notes[-1].endswith("by the training rows of each client")


def test_a_column_of_windows_is_scaled_over_all_of_their_steps() -> None:
    raw = table(windows=True)
    data = federate(raw)
    rows = data.x[trained(data)].double().reshape(-1, 3)
    torch.testing.assert_close(rows.mean(0), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(rows.std(0, correction=0), torch.ones(3, dtype=torch.float64), rtol=1e-6, atol=0)
    assert data.x_scale is not None
    assert data.x_scale.shift.shape == (1, 3)


def test_test_rows_do_not_move_the_scale() -> None:
    raw = table()
    data = federate(raw, chronological=True)
    spoilt = raw.x.clone()
    spoilt[torch.cat([data.splits["test"][k] for k in range(4)])] = 1e6
    again = federate(replace(raw, x=spoilt), chronological=True)
    assert torch.equal(again.x[trained(again)], data.x[trained(data)])


def test_clients_that_are_kept_out_of_training_do_not_move_the_scale() -> None:
    raw = table()
    data = federate(raw, target=0.25)
    assert data.roles is not None
    targets = torch.nonzero(data.roles == TARGET).flatten().tolist()
    sources = torch.nonzero(data.roles == SOURCE).flatten().tolist()
    rows = torch.cat([trained(data, client) for client in sources])
    torch.testing.assert_close(data.x[rows].double().mean(0), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-6)
    assert float(data.x[trained(data, targets[0])].mean(0).abs().max()) > 0.01


@pytest.mark.parametrize("by", ["all", "client"])
@pytest.mark.parametrize("kind", SCIKIT)
def test_scaled_targets_come_back_in_their_own_units(kind: str, by: str) -> None:
    raw = table(kind=kind, by=by)
    data = federate(raw)
    assert data.y_scale is not None
    for client in range(data.clients):
        own = torch.cat([data.splits[split][client] for split in ("train", "test")])
        back = data.y_scale.original(data.y[own], torch.full_like(own, client))
        assert back.dtype == torch.float64
        torch.testing.assert_close(back, raw.y[own].double(), rtol=1e-5, atol=1e-3)


def test_a_missing_feature_is_the_mean_of_the_clients_own_training_rows() -> None:
    known = {"a": [1.0, 3.0, NAN, 5.0, NAN], "b": [10.0, NAN, 30.0, 20.0, 40.0]}
    raw = from_clients({name: (np.zeros((5, 1)), np.zeros((5, 1))) for name in known}, task="regression")
    x = torch.tensor([*known["a"], *known["b"]]).unsqueeze(1)
    data = federate(replace(raw, x=x, scaling=Scaling("none")), test=0.2, chronological=True)
    # the last row of each is for the test: a knows 1, 3 and 5, b knows 10, 30 and 20
    assert data.x.flatten().tolist() == [1.0, 3.0, 3.0, 5.0, 3.0, 10.0, 20.0, 30.0, 20.0, 40.0]
    assert data.x_scale is None
    assert "30 % of the features were missing" in data.notes[-1]


def test_a_feature_that_a_client_never_has_is_the_mean_of_all_others_and_0_once_standardised() -> None:
    x = np.array([[1.0, NAN], [2.0, NAN], [3.0, NAN], [1.0, 4.0], [5.0, 6.0], [9.0, 8.0]], dtype=np.float32)
    raw = from_clients({"a": (np.zeros((3, 2)), np.zeros((3, 1))), "b": (np.zeros((3, 2)), np.zeros((3, 1)))})
    raw = replace(raw, x=torch.from_numpy(x), scaling=Scaling("standard"))
    assert federate(raw, test=0.0).x[:3, 1].tolist() == [0.0, 0.0, 0.0]
    filled = federate(replace(raw, scaling=Scaling("none")), test=0.0)
    assert filled.x[:3, 1].tolist() == [6.0, 6.0, 6.0]


def test_a_feature_that_nobody_has_is_0_and_a_constant_one_is_only_shifted() -> None:
    x = torch.tensor([[NAN, 0.1]] * 6)
    raw = Table("flat", x, torch.zeros(6, 1), "regression", scaling=Scaling("standard"))
    data = federate(raw, clients=2, test=0.0)
    assert data.x.abs().max() == 0
    assert data.y.abs().max() == 0


def test_without_a_scaling_a_missing_feature_is_refused_and_infinity_always_is() -> None:
    raw = from_arrays(np.zeros((4, 1)), np.zeros(4), task="regression", name="gaps")
    with pytest.raises(DataError, match=r"'gaps' has a feature that is not finite \(row 2, column 0\)"):
        federate(replace(raw, x=torch.tensor([[1.0], [1.0], [NAN], [1.0]])))
    broken = replace(raw, x=torch.tensor([[NAN], [1.0], [1.0], [torch.inf]]), scaling=Scaling())
    with pytest.raises(DataError, match=r"not finite \(row 3, column 0\)"):
        federate(broken)


def test_new_data_are_scaled_like_those_that_a_model_was_trained_on() -> None:
    raw = table()
    known = federate(raw)
    other = replace(raw.take(torch.arange(30)), x=raw.x[:30] + 50, y=raw.y[:30] - 7)
    alike = federate(other, like=known, test=0.0)
    assert known.x_scale is not None
    expected = known.x_scale.scaled(other.x, torch.zeros(30, dtype=torch.int64))
    torch.testing.assert_close(alike.x, expected)
    assert alike.y_scale is known.y_scale
    for asked in (None, Scaling("none"), Scaling("min-max", "client")):
        plain = federate(replace(other, scaling=asked), like=known, test=0.0)
        assert torch.equal(plain.x, alike.x)
        assert torch.equal(plain.y, alike.y)
        assert plain.x_scale is known.x_scale


def test_new_clients_of_data_that_were_scaled_client_by_client_must_say_how_they_are_scaled() -> None:
    raw = table(by="client")
    known = federate(raw)
    assert torch.equal(federate(raw, like=known).x, known.x)
    for asked in (None, Scaling("none")):
        with pytest.raises(ConfigError, match="each client was scaled by its own rows; give the table such a scaling"):
            federate(replace(raw, scaling=asked), like=known)


@pytest.mark.parametrize("by", ["all", "client"])
def test_data_without_a_missing_value_stay_as_they_are_when_nothing_is_to_be_scaled(by: str) -> None:
    raw = table(kind="none", by=by)
    data = federate(raw)
    assert torch.equal(data.x, raw.x)
    assert torch.equal(data.y, raw.y)
    assert (data.x_scale, data.y_scale) == (None, None)


@given(
    clients=st.integers(1, 5),
    sizes=st.lists(st.integers(2, 9), min_size=5, max_size=5),
    missing=st.floats(0, 0.6),
    seed=st.integers(0, 99),
    by=st.sampled_from(["all", "client"]),
)
def test_whatever_is_missing_training_rows_that_are_known_have_mean_0_and_at_most_deviation_1(
    clients: int, sizes: list[int], missing: float, seed: int, by: str
) -> None:
    random = np.random.default_rng(seed)
    owner = np.repeat(np.arange(clients), sizes[:clients])
    x = random.normal(loc=7, scale=3, size=(len(owner), 2)).astype(np.float32)
    gaps = random.random(x.shape) < missing
    raw = from_arrays(x, x[:, 0], owner, task="regression")
    raw = replace(raw, x=torch.from_numpy(np.where(gaps, NAN, x)), scaling=Scaling("standard", by))  # type: ignore[arg-type]
    data = federate(raw, test=0.0)
    assert bool(torch.isfinite(data.x).all())
    groups = [np.arange(len(owner))] if by == "all" else [np.flatnonzero(owner == k) for k in range(clients)]
    for rows in groups:
        for column in range(2):
            known = rows[~gaps[rows, column]]
            values = data.x[known, column].double()
            if len(known):
                assert abs(float(values.mean())) < 1e-4
                assert float(values.std(correction=0)) < 1 + 1e-4


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"kind": "robust"}, "kind = 'robust' cannot be: Input should be 'none', 'standard' or 'min-max'"),
        ({"by": "row"}, "by = 'row' cannot be: Input should be 'all' or 'client'"),
    ],
)
def test_a_scaling_that_cannot_be_is_refused(wrong: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        federate(table(**wrong))


def test_a_file_is_scaled_by_its_training_rows_when_that_is_asked_for(tmp_path: Any) -> None:
    lines = [f"{k % 3},{k},{k * k},{2 * k}" for k in range(30)]
    path = tmp_path / "own.csv"
    path.write_text("who,a,b,goal\n" + "\n".join(lines))
    raw = load_file(path, client_column="who", label_column="goal", task="regression", scaling="min-max")
    data = federate(raw)
    rows = data.x[trained(data)]
    assert rows.amin(0).tolist() == [0.0, 0.0]
    assert rows.amax(0).tolist() == [1.0, 1.0]
    assert (data.feature_names, data.columns) == (("a", "b"), ("goal",))
    with pytest.raises(ConfigError, match="standardise and scaling both scale"):
        load_file(path, client_column="who", label_column="goal", scaling="min-max", standardise=True)
