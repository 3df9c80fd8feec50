from __future__ import annotations

import io
import json
import math
from collections.abc import Callable

import pytest
import torch
from rich.console import Console

from fedloom.data import describe, federate, from_arrays, gradient_heterogeneity, synthetic_linear
from fedloom.data.heterogeneity import label_distance, mean_shift, size_imbalance
from fedloom.data.table import Table

Make = Callable[..., Table]


def test_equal_label_distributions_have_no_distance() -> None:
    found = label_distance(torch.tensor([[10, 20], [1, 2], [100, 200]]))
    assert found["label_total_variation"] == pytest.approx(0, abs=1e-12)
    assert found["label_jensen_shannon"] == pytest.approx(0, abs=1e-12)


def test_two_clients_of_one_class_each_are_half_a_variation_from_the_whole() -> None:
    found = label_distance(torch.tensor([[5, 0], [0, 5]]))
    assert found["label_total_variation"] == pytest.approx(0.5)
    assert found["label_jensen_shannon"] == pytest.approx(0.5 * math.log2(4 / 3) + 0.25 * math.log2(2 / 3) + 0.25)


def test_clients_without_rows_do_not_count() -> None:
    assert label_distance(torch.tensor([[5, 5], [0, 0]]))["label_total_variation"] == 0


def test_equal_sizes_have_no_imbalance() -> None:
    assert size_imbalance(torch.full((8,), 30)) == pytest.approx(
        {"size_gini": 0, "size_ratio": 1, "effective_clients": 8}
    )


def test_one_client_that_has_everything_is_one_effective_client() -> None:
    found = size_imbalance(torch.tensor([0, 0, 0, 100]))
    assert found == pytest.approx({"size_gini": 0.75, "size_ratio": 100, "effective_clients": 1})


def test_the_gini_coefficient_of_one_to_four_is_a_quarter() -> None:
    assert size_imbalance(torch.tensor([4, 1, 3, 2]))["size_gini"] == pytest.approx(0.25)


def test_features_that_name_their_client_lie_wholly_between_clients() -> None:
    apart = from_arrays([[0.0]] * 10 + [[6.0]] * 5, [0, 1, 2] * 5, clients=[0] * 10 + [1] * 5)
    assert mean_shift(federate(apart), federate(apart).x) == pytest.approx(1.0)


def test_the_share_between_clients_is_that_of_the_analysis_of_variance() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=random) + torch.arange(3).repeat_interleave(100).unsqueeze(1)
    data = federate(from_arrays(x, [0, 1, 2] * 100, clients=[k // 100 for k in range(300)]))
    means = x.view(3, 100, 4).mean(1)
    between = 100 * ((means - x.mean(0)) ** 2).sum()
    assert mean_shift(data, data.x) == pytest.approx(float(between / ((x - x.mean(0)) ** 2).sum()), rel=1e-5)


def test_the_share_between_clients_does_not_depend_on_how_many_rows_are_looked_at_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = federate("digits", clients=7, partition="dirichlet", alpha=0.1)
    whole = mean_shift(data, data.x)
    for chunk in (1, 10, 100):
        monkeypatch.setattr("fedloom.data.heterogeneity._CHUNK", chunk)
        assert mean_shift(data, data.x) == pytest.approx(whole, rel=1e-9)


def test_constant_features_shift_nowhere() -> None:
    data = federate(from_arrays([[3.0]] * 20, [0, 1] * 10), clients=2)
    assert mean_shift(data, data.x) == 0


def test_a_smaller_alpha_is_more_heterogeneous_by_every_measure() -> None:
    even, skewed = (
        describe(federate("digits", clients=10, partition="dirichlet", alpha=alpha)).heterogeneity
        for alpha in (100.0, 0.1)
    )
    for measure in ("label_total_variation", "label_jensen_shannon", "size_gini", "size_ratio", "feature_shift"):
        assert skewed[measure] > even[measure]
    assert skewed["effective_clients"] < even["effective_clients"]


def test_the_record_is_plain_json_with_the_agreed_keys() -> None:
    data = federate("digits", clients=4, target=0.25, partition="dirichlet")
    record = json.loads(json.dumps(describe(data).record()))
    assert set(record) == {
        "name",
        "task",
        "clients",
        "classes",
        "labels",
        "counts",
        "roles",
        "sizes",
        "notes",
        "heterogeneity",
    }
    assert (record["name"], record["clients"]) == ("digits", 4)
    assert sorted(record["roles"]) == ["source", "source", "source", "target"]
    assert sum(map(sum, record["counts"])) == 1797
    totals = [train + test for train, test in zip(record["sizes"]["train"], record["sizes"]["test"], strict=True)]
    assert [sum(row) for row in record["counts"]] == totals


def test_a_regression_counts_rows_and_measures_its_targets() -> None:
    description = describe(federate("diabetes", clients=3))
    assert description.record()["counts"] == [[148], [147], [147]]
    assert "target_shift" in description.heterogeneity
    assert "label_total_variation" not in description.heterogeneity


def test_several_labels_are_counted_where_they_are_known_to_hold() -> None:
    y = [[1.0, float("nan")], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    table = from_arrays(torch.rand(4, 2), y, task="multilabel", classes=["a", "b"], clients=[0, 0, 1, 1])
    assert describe(federate(table)).record()["counts"] == [[2, 0], [1, 2]]


def test_binary_labels_are_counted_by_class() -> None:
    counts = describe(federate("breast-cancer", clients=2)).counts
    assert counts.sum(0).tolist() == [212, 357]


def test_at_most_two_hundred_clients_are_listed_but_all_are_counted() -> None:
    record = describe(synthetic_linear(clients=500, rows=2, features=2)).record()
    assert record["clients"] == 500
    assert [len(record[key]) for key in ("labels", "counts", "roles")] == [200, 200, 200]
    assert len(record["sizes"]["train"]) == 200
    assert record["heterogeneity"]["effective_clients"] == pytest.approx(500)


def test_the_terminal_table_shows_clients_labels_measures_and_notes(labelled: Make) -> None:
    table = labelled([0, 1, 2] * 20, groups=torch.arange(60) % 3, group_names=("ann", "bob", "cy"))
    text = io.StringIO()
    Console(file=text, width=140).print(describe(federate(table, target=0.34)).table(limit=2))
    shown = text.getvalue()
    assert "ann" in shown
    assert "cy" not in shown
    assert "1 clients more" in shown
    assert "effective clients 3" in shown
    assert "c0: 20" in shown


def test_the_figure_has_a_bar_for_every_class_or_a_map_for_many(labelled: Make) -> None:
    few = describe(federate(labelled([0, 1, 2] * 20), clients=4)).figure()
    assert [bar.name for bar in few.data] == ["c0", "c1", "c2"]
    assert sum(sum(bar.y) for bar in few.data) == 60
    many = describe(federate(labelled(list(range(30)) * 2), clients=4)).figure()
    assert many.data[0].type == "heatmap"
    assert describe(federate("diabetes", clients=3)).figure().data[0].name == "rows"


def test_equal_gradients_differ_by_nothing_and_opposite_ones_by_their_square() -> None:
    same = gradient_heterogeneity(torch.tensor([[3.0, 4.0], [3.0, 4.0]]))
    assert same == {"between": 0.0, "squared_norm": 25.0}
    opposite = gradient_heterogeneity(torch.tensor([[3.0, 4.0], [-3.0, -4.0]]))
    assert opposite == {"between": 25.0, "squared_norm": 0.0}


def test_between_and_within_add_up_to_the_variance_of_all_samples() -> None:
    random = torch.Generator().manual_seed(0)
    sizes = [3, 10, 7]
    samples = [torch.randn(n, 5, generator=random, dtype=torch.float64) + k for k, n in enumerate(sizes)]
    gradients = torch.stack([part.mean(0) for part in samples])
    moments = torch.stack([(part**2).sum(1).mean() for part in samples])
    found = gradient_heterogeneity(gradients, moments, torch.tensor(sizes))
    pooled = torch.cat(samples)
    variance = ((pooled - pooled.mean(0)) ** 2).sum(1).mean()
    assert found["between"] + found["within"] == pytest.approx(float(variance))
    assert found["squared_norm"] == pytest.approx(float((pooled.mean(0) ** 2).sum()))


def test_validation_rows_count_among_those_that_a_client_has() -> None:
    plain, held = (describe(federate("digits", clients=4, validation=share)) for share in (None, 0.25))
    assert torch.equal(plain.counts, held.counts)
    sizes = held.record()["sizes"]
    assert list(sizes) == ["train", "validation", "test"]
    assert sum(map(sum, sizes.values())) == 1797
    shown = io.StringIO()
    Console(file=shown, width=200).print(held.table())
    assert "validation" in shown.getvalue()
