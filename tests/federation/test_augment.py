"""Images of mini-batches that are mirrored and moved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedloom
from fedloom.data import federate, load
from fedloom.errors import ConfigError, FedloomError
from fedloom.federation.augment import Augment
from fedloom.federation.data import FederatedData
from fedloom.federation.randomness import Draw

torch.set_num_threads(1)
IDS = np.arange(3)


@pytest.fixture(scope="module")
def data() -> FederatedData:
    table = load("digits")
    return federate(table.take(torch.arange(200)), clients=6, partition="dirichlet", alpha=0.5)


def changed(data: FederatedData, flip: float = 0.0, crop: int = 0) -> FederatedData:
    return replace(data, augment=Augment(flip, crop))


def trained(data: FederatedData, method: str = "fedavg:lr=0.1,batch=8", model: str = "mlp", **how: object) -> str:
    problem = fedloom.Problem(data, fedloom.build_model(model, data))
    run = fedloom.train(problem, method, rounds=2, select=4, progress=False, **how)  # type: ignore[arg-type]
    return str(run.summary["theta_sha256"])


# The images


@given(seed=st.integers(0, 9), step=st.integers(1, 9), crop=st.integers(0, 3))
def test_every_image_is_a_mirrored_or_moved_copy_that_repeats_its_edge(seed: int, step: int, crop: int) -> None:
    x = torch.arange(3 * 4 * 2 * 5 * 6, dtype=torch.float32).view(3, 4, 2, 5, 6)
    shown = Augment(0.5, crop).images(x, Draw(seed), "batches", IDS, step)
    padded = torch.nn.functional.pad(x.flatten(0, 1), (crop,) * 4, mode="replicate") if crop else x.flatten(0, 1)
    for image, given_ in zip(shown.flatten(0, 1), padded, strict=True):
        windows = [
            whole[:, down : down + 5, right : right + 6]
            for whole in (given_, given_.flip(-1))
            for down in range(2 * crop + 1)
            for right in range(2 * crop + 1)
        ]
        assert any(torch.equal(image, window) for window in windows)


def test_a_flip_for_certain_mirrors_and_a_crop_of_nothing_changes_nothing() -> None:
    x = torch.randn(3, 4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Augment(1.0).images(x, Draw(0), "batches", IDS, 1), x.flip(-1))
    assert torch.equal(Augment(0.0, 0).images(x, Draw(0), "batches", IDS, 1), x)


def test_flips_are_as_frequent_as_asked_for_and_all_moves_as_likely() -> None:
    x = torch.zeros(1, 9000, 1, 9, 9)
    x[..., 4, 3] = 1.0
    at = Augment(0.3, 2).images(x, Draw(1), "batches", np.array([7]), 1).view(9000, 81).argmax(1)
    row, column = (at // 9).numpy(), (at % 9).numpy()
    places = np.bincount(row, minlength=9)[2:7]
    assert np.abs(places - 1800).max() < 5 * np.sqrt(1800)
    unflipped = np.isin(column, (1,)).sum() / 9000  # 3 moved by -2, which no mirrored image (5 ± 2) can be
    assert abs(unflipped - 0.7 / 5) < 0.02


def test_what_is_drawn_depends_on_client_step_and_place_alone() -> None:
    x = torch.randn(3, 6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    augment, draw = Augment(0.5, 1), Draw(5, 2)
    whole = augment.images(x, draw, "batches", IDS, 4)
    assert torch.equal(augment.images(x[1:2, :3], draw, "batches", IDS[1:2], 4), whole[1:2, :3])
    for other in (
        augment.images(x, draw, "batches", IDS, 5),
        augment.images(x, draw, "batches", IDS + 3, 4),
        augment.images(x, draw, "elsewhere", IDS, 4),
        augment.images(x, Draw(5, 3), "batches", IDS, 4),
        augment.images(x, Draw(6, 2), "batches", IDS, 4),
    ):
        assert not torch.equal(other, whole)


# Training


@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_training_with_a_certain_flip_is_training_on_mirrored_images(data: FederatedData, model: str) -> None:
    mirrored = replace(data, x=data.x.flip(-1).contiguous())
    how = {"evaluate": []}
    assert trained(changed(data, flip=1.0), model=model, **how) == trained(mirrored, model=model, **how)
    assert trained(changed(data, flip=1.0), model=model, **how) != trained(data, model=model, **how)


@pytest.mark.parametrize("method", ["fedavg:lr=0.1,batch=8", "scaffold:lr=0.1,batch=8", "fedmeta-maml:batch=4"])
def test_a_crop_of_nothing_trains_as_before(data: FederatedData, method: str) -> None:
    assert trained(changed(data), method) == trained(data, method)
    assert trained(changed(data, 0.5, 1), method) != trained(data, method)


@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_executor_and_stack_do_not_matter(data: FederatedData, model: str) -> None:
    varied = changed(data, 0.5, 1)
    expected = trained(varied, model=model, executor="serial", stack=2)
    assert trained(varied, model=model, executor="processes", workers=2, stack=2) == expected


def test_every_client_of_a_stack_is_shown_what_it_is_shown_alone(data: FederatedData) -> None:
    varied = changed(data, 0.5, 1)
    problem = fedloom.Problem(varied, fedloom.build_model("linear", varied), dtype=torch.float64)
    theta, ids = torch.zeros(problem.model.n, dtype=torch.float64), np.array([4, 0, 2])
    together, _ = problem.client(ids, Draw(3, 1)).sgd(theta, 0.1, batch=5, epochs=2)
    for place, client in enumerate(ids):
        alone, _ = problem.client(int(client), Draw(3, 1)).sgd(theta, 0.1, batch=5, epochs=2)
        torch.testing.assert_close(together[place], alone, rtol=1e-12, atol=1e-12)


def test_scan_takes_the_images_that_sgd_takes(data: FederatedData) -> None:
    varied = changed(data, 0.5, 1)
    problem = fedloom.Problem(varied, fedloom.build_model("linear", varied), dtype=torch.float64)
    theta = torch.zeros(problem.model.n, dtype=torch.float64)
    client = problem.client(np.array([1, 3]), Draw(0, 2))
    expected, _ = client.sgd(theta, 0.1, batch=5)

    def step(carry: dict[str, torch.Tensor], rows: object) -> dict[str, torch.Tensor]:
        return {"y": carry["y"] - 0.1 * client.grad(carry["y"], rows)}  # type: ignore[arg-type]

    found, _ = client.scan(step, {"y": theta.expand(2, -1)}, batch=5)
    torch.testing.assert_close(found["y"], expected, rtol=1e-12, atol=1e-12)


def test_a_resumed_run_goes_on_with_the_same_images(data: FederatedData, tmp_path: Path) -> None:
    varied = changed(data, 0.5, 1)
    problem = fedloom.Problem(varied, fedloom.build_model("linear", varied))

    def run(rounds: int, where: str, **how: object) -> str:
        done = fedloom.train(
            problem, "fedavg:batch=8", rounds=rounds, out=tmp_path / where, progress=False, checkpoint_every=1, **how
        )  # type: ignore[arg-type]
        return str(done.summary["theta_sha256"])

    whole = run(3, "whole")
    run(1, "parts")
    assert run(3, "parts", resume=True) == whole
    other = replace(problem.data, augment=Augment(0.5, 2))
    with pytest.raises(FedloomError, match="augment"):
        fedloom.train(
            problem.on(other), "fedavg:batch=8", rounds=4, out=tmp_path / "parts", resume=True, progress=False
        )


def test_what_is_evaluated_is_never_changed(data: FederatedData) -> None:
    varied = changed(data, 0.5, 1)
    problem = fedloom.Problem(varied, fedloom.build_model("linear", varied))
    client = problem.client(0)
    for split in ("train", "test"):
        assert torch.equal(client.rows(split).x, data.x[data.splits[split][0]])
    for rows in client.batches("test", 2):
        assert all(bool((row == data.x[data.splits["test"][0]]).flatten(1).all(1).any()) for row in rows.x)


# What is asked for


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("flip", Augment(0.5, 0)),
        ("crop", Augment(0.0, 4)),
        ("flip, crop", Augment(0.5, 4)),
        ("crop:2,flip:1", Augment(1.0, 2)),
        ("crop:0", Augment()),
    ],
)
def test_texts_say_what_is_done(text: str, found: Augment) -> None:
    assert Augment.parse(text, (3, 32, 32)) == found


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("flop", "'flop' does not exist; did you mean 'flip'"),
        ("", "'' does not exist"),
        ("flip,flip", "'flip' is there twice"),
        ("flip:2", "flip:2 cannot be; give a probability from 0 to 1"),
        ("flip:nan", "flip:nan cannot be"),
        ("crop:-1", "crop:-1 cannot be; give whole pixels from 0 to 31"),
        ("crop:32", "crop:32 cannot be"),
        ("crop:1.5", "crop:1.5 cannot be"),
    ],
)
def test_what_cannot_be_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Augment.parse(text, (3, 32, 32))


def test_rows_that_are_no_images_and_methods_without_mini_batches_are_refused(data: FederatedData) -> None:
    with pytest.raises(ConfigError, match=r"is for images, \(channels, height, width\), but a row has shape \(30,\)"):
        federate("breast-cancer", augment="flip")
    with pytest.raises(ConfigError, match="clients of fedsgd take all of their rows in every step"):
        trained(changed(data, 0.5), "fedsgd")
