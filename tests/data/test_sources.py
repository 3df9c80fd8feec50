from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.data import SOURCES, describe, federate, load, optimum
from fedloom.errors import ConfigError, DataError

MADE_HERE = ("digits", "breast-cancer", "diabetes", "synthetic", "quadratics")


def test_every_source_of_the_plan_is_registered_under_its_own_name() -> None:
    names = {"digits", "breast-cancer", "diabetes", "mnist", "fashion-mnist", "qmnist", "cifar10", "cifar100"}
    assert set(SOURCES) == names | {
        "beijing-air",
        "extrasensory",
        "hapt",
        "vehicle",
        "landmine",
        "synthetic",
        "quadratics",
    }
    assert all(source.name == name for name, source in SOURCES.items())


@pytest.mark.parametrize("name", MADE_HERE)
def test_a_source_that_needs_no_download_gives_a_sound_table_of_its_task(name: str) -> None:
    table = load(name)
    assert table.check() is table
    assert table.x.dtype == torch.float32
    assert table.task == SOURCES[name].task
    assert (table.groups is not None) == SOURCES[name].natural


def test_an_unknown_source_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fashion-mnist'"):
        load("fashion_mnist")


def test_an_unknown_option_of_a_source_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="'synthetic' has no option 'alfa'; did you mean 'alpha'"):
        load("synthetic", alfa=1.0)


def test_digits_are_those_of_scikit_learn_divided_by_sixteen() -> None:
    from sklearn.datasets import load_digits

    table, theirs = load("digits"), load_digits()
    assert torch.equal(table.x[:, 0] * 16, torch.tensor(theirs.images, dtype=torch.float32))
    assert table.y.tolist() == theirs.target.tolist()


@pytest.mark.parametrize("name", ["breast-cancer", "diabetes"])
def test_tabular_features_have_mean_zero_and_deviation_one(name: str) -> None:
    x = load(name).x.double()
    assert torch.allclose(x.mean(0), torch.zeros(x.shape[1], dtype=x.dtype), atol=1e-6)
    assert torch.allclose(x.std(0, correction=0), torch.ones(x.shape[1], dtype=x.dtype), atol=1e-6)


def test_the_regression_target_is_standardised_and_the_note_says_how_to_undo_it() -> None:
    table = load("diabetes")
    assert float(table.y.mean()) == pytest.approx(0, abs=1e-6)
    assert float(table.y.std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert any("(y - 152.1) / 77.01" in note for note in table.notes)


def test_mnist_files_become_images_labels_and_the_published_split(small_mnist: Path) -> None:
    table = load("mnist")
    assert table.x.shape == (10, 1, 28, 28)
    assert torch.allclose(table.x[:, 0, 3, 3] * 255, torch.arange(10.0))
    assert table.y.tolist() == list(range(10))
    assert table.published_split is not None
    assert table.published_split.tolist() == [False] * 6 + [True] * 4


def test_images_are_scaled_in_the_way_that_was_asked_for(small_mnist: Path) -> None:
    assert float(load("mnist", scaling="centred").x.min()) == -1
    pixelwise = load("mnist", scaling="pixelwise").x
    assert torch.allclose(pixelwise.mean(0), torch.zeros(1, 28, 28), atol=1e-5)
    ramp = torch.arange(10.0)  # the bytes of the ten rows at one place
    wanted = (ramp - 4.5) / (float(ramp.std(correction=0)) + 0.001)
    assert torch.allclose(pixelwise[:, 0, 3, 3], wanted, atol=1e-6)
    with pytest.raises(
        ConfigError, match="mnist: scaling = 'grey' cannot be: Input should be 'unit', 'centred' or 'pixelwise'"
    ):
        load("mnist", scaling="grey")


def test_qmnist_gives_each_mnist_image_to_its_writer(
    small_mnist: Path, own_data: Path, write_idx: Callable[[Path, np.ndarray], Path]
) -> None:
    cards = np.zeros((6, 8), dtype=np.int32)
    cards[:, 0], cards[:, 2], cards[:, 5] = range(6), [40, 7, 40, 7, 7, 99], range(100, 106)
    write_idx(own_data / "qmnist" / "qmnist-train-labels-idx2-int.gz", cards)
    later = np.zeros((9, 8), dtype=np.int32)  # more cards than images, as published
    later[:, 0], later[:, 2] = [6, 7, 8, 9, 0, 0, 0, 0, 0], 500
    write_idx(own_data / "qmnist" / "qmnist-test-labels-idx2-int.gz", later)
    table = load("qmnist")
    assert table.group_names == ("writer 7", "writer 40", "writer 99")
    assert table.groups is not None
    assert table.groups.tolist() == [1, 0, 1, 0, 0, 2]
    assert table.ids is not None
    assert table.ids.tolist() == list(range(100, 106))
    everybody = load("qmnist", part="all")
    assert everybody.y.tolist() == list(range(10))
    assert everybody.published_split is not None
    assert everybody.published_split.sum() == 4


def test_qmnist_with_fewer_cards_than_images_is_refused(
    small_mnist: Path, own_data: Path, write_idx: Callable[[Path, np.ndarray], Path]
) -> None:
    write_idx(own_data / "qmnist" / "qmnist-train-labels-idx2-int.gz", np.zeros((5, 8), dtype=np.int32))
    with pytest.raises(DataError, match=r"6 images but .* 5 labels; the two do not belong together"):
        load("qmnist")


def cifar_records(labels: list[int], label_bytes: int) -> bytes:
    """Records whose red, green and blue planes are 1, 2 and 3 times the label."""
    planes = [np.repeat(np.array([1, 2, 3], dtype=np.uint8) * label, 1024) for label in labels]
    heads = [np.array([0] * (label_bytes - 1) + [label], dtype=np.uint8) for label in labels]
    return b"".join(np.concatenate(pair).tobytes() for pair in zip(heads, planes, strict=True))


def test_cifar10_takes_the_data_batches_that_are_there_in_order(own_data: Path) -> None:
    folder = own_data / "cifar10"
    folder.mkdir()
    (folder / "data_batch_1.bin").write_bytes(cifar_records([1, 2], 1))
    (folder / "data_batch_3.bin").write_bytes(cifar_records([3], 1))
    (folder / "test_batch.bin").write_bytes(cifar_records([9], 1))
    table = load("cifar10")
    assert table.x.shape == (4, 3, 32, 32)
    assert table.y.tolist() == [1, 2, 3, 9]
    assert torch.allclose(table.x[:, :, 5, 7] * 255, torch.tensor([[k, 2.0 * k, 3.0 * k] for k in (1, 2, 3, 9)]))
    assert table.published_split is not None
    assert table.published_split.tolist() == [False, False, False, True]
    assert "2 of the 5 published data batches are here" in table.notes


def test_cifar100_reads_the_fine_label_of_two(own_data: Path) -> None:
    folder = own_data / "cifar100"
    folder.mkdir()
    (folder / "train.bin").write_bytes(cifar_records([42, 7], 2))
    (folder / "test.bin").write_bytes(cifar_records([80], 2))
    (folder / "fine_label_names.txt").write_text("\n".join(f"kind{k}" for k in range(100)))
    table = load("cifar100")
    assert table.y.tolist() == [42, 7, 80]
    assert table.classes[42] == "kind42"


def test_the_real_mnist_has_its_known_numbers(real: Callable[..., Path]) -> None:
    real("mnist")
    table = load("mnist")
    assert table.x.shape == (70_000, 1, 28, 28)
    assert torch.bincount(table.y[:60_000]).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert float(table.x[:60_000].mean()) == pytest.approx(0.1307, abs=1e-4)


def test_the_real_fashion_mnist_is_balanced(real: Callable[..., Path]) -> None:
    real("fashion-mnist")
    table = load("fashion-mnist")
    assert torch.bincount(table.y).tolist() == [7000] * 10
    assert float(table.x[:60_000].mean()) == pytest.approx(0.2860, abs=1e-4)


def test_the_real_qmnist_has_539_training_writers_and_297_others(real: Callable[..., Path]) -> None:
    real("mnist", "qmnist")
    assert len(load("qmnist").group_names or ()) == 539
    test = load("qmnist", part="test")
    assert (len(test), len(test.group_names or ())) == (10_000, 297)


def test_the_real_cifar100_has_a_hundred_balanced_classes(real: Callable[..., Path]) -> None:
    real("cifar100")
    table = load("cifar100")
    counts = torch.bincount(table.y)
    assert len(counts) == 100
    assert int(counts.min()) == int(counts.max())
    assert "apple" in table.classes


def test_synthetic_clients_have_at_least_fifty_rows_and_the_papers_dimensions() -> None:
    table = load("synthetic")
    assert table.groups is not None
    sizes = torch.bincount(table.groups)
    assert len(sizes) == 30
    assert int(sizes.min()) >= 50
    assert (table.x.shape[1], len(table.classes)) == (60, 10)


def test_synthetic_features_spread_as_the_paper_says() -> None:
    table = load("synthetic", beta=0.0, clients=1, rows=100_000)
    expected = torch.arange(1, 61, dtype=torch.float32) ** -1.2
    assert torch.allclose(table.x.var(0), expected, rtol=0.05)


def test_beta_moves_the_clients_apart() -> None:
    def spread(beta: float) -> float:
        table = load("synthetic", beta=beta, clients=200, rows=20)
        return float(table.x.view(200, -1).mean(1).std())

    assert spread(5.0) == pytest.approx(5.0, rel=0.2)
    assert spread(0.0) < 0.3


def test_iid_synthetic_clients_share_one_labelling_and_others_do_not() -> None:
    def distance(iid: bool) -> float:
        data = federate(load("synthetic", iid=iid, clients=10, rows=400))
        return describe(data).heterogeneity["label_total_variation"]

    assert distance(iid=True) < 0.1
    assert distance(iid=False) > 0.5


def test_the_same_seed_gives_the_same_data_and_another_seed_others() -> None:
    for name in ("synthetic", "quadratics"):
        assert torch.equal(load(name, seed=3).x, load(name, seed=3).x)
        assert not torch.equal(load(name, seed=3, clients=5).x[:50], load(name, seed=4, clients=5).x[:50])


@pytest.mark.parametrize("weighting", ["rows", "clients"])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_gradient_of_the_federated_objective_is_zero_at_the_optimum(weighting: str, noise: float) -> None:
    table = load("quadratics", clients=7, dimension=4, rows=11, noise=noise, unequal=True)
    w = optimum(table, weighting=weighting)  # type: ignore[arg-type]
    x, y, groups = table.x.double(), table.y.double()[:, 0], table.groups
    assert groups is not None
    gradient = torch.zeros(4, dtype=torch.float64)
    for client in range(7):
        mine = groups == client
        share = int(mine.sum()) / len(x) if weighting == "rows" else 1 / 7
        gradient += share * x[mine].T @ (x[mine] @ w - y[mine]) / int(mine.sum())
    assert float(gradient.norm()) < 1e-12


def test_without_heterogeneity_and_noise_every_client_agrees_on_the_optimum() -> None:
    table = load("quadratics", heterogeneity=0.0, rows=12, dimension=3)
    w = optimum(table)
    assert torch.allclose(table.x.double() @ w, table.y.double()[:, 0], atol=1e-5)
    assert torch.allclose(w, optimum(table, weighting="clients"), atol=1e-5)


def test_the_pooled_hessian_has_the_condition_number_that_was_asked_for() -> None:
    x = load("quadratics", condition=50.0, dimension=6, heterogeneity=2.0).x.double()
    values = torch.linalg.eigvalsh(x.T @ x / len(x))
    assert float(values[-1]) == pytest.approx(1.0, rel=1e-5)
    assert float(values[-1] / values[0]) == pytest.approx(50.0, rel=1e-4)


def test_unequal_quadratics_have_clients_of_many_sizes() -> None:
    groups = load("quadratics", clients=5, rows=20, unequal=True).groups
    assert groups is not None
    assert sorted(torch.bincount(groups).tolist()) == [10, 15, 20, 25, 30]


def test_ridge_and_intercept_are_those_of_the_normal_equations() -> None:
    table = load("quadratics", clients=3, rows=15, noise=1.0)
    w = optimum(table, ridge=0.3, bias=True)
    x = torch.cat([table.x.double(), torch.ones(len(table), 1, dtype=torch.float64)], 1)
    gradient = x.T @ (x @ w - table.y.double()[:, 0]) / len(x) + 0.3 * w
    assert float(gradient.norm()) < 1e-12


@pytest.mark.parametrize("wrong", [{"clients": 0}, {"condition": 0.5}, {"rows": 1, "clients": 2, "dimension": 3}])
def test_quadratics_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="quadratics"):
        load("quadratics", **wrong)


def test_synthetic_data_that_cannot_be_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="synthetic: classes = 1 cannot be: Input should be greater than or equal to 2"
    ):
        load("synthetic", classes=1)
    with pytest.raises(ConfigError, match="synthetic: clients = 'many' cannot be: Input should be a valid integer"):
        load("synthetic", clients="many")
