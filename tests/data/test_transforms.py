from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedloom.data import federate, make_partition
from fedloom.data.owners import Pool
from fedloom.data.table import Table
from fedloom.data.transforms import Concept, FeatureSkew, rotated
from fedloom.errors import ConfigError, DataError
from fedloom.federation.randomness import Draw

Make = Callable[..., Table]
OWNER = torch.arange(8).repeat_interleave(500)


def plain(task: str = "classification") -> Table:
    x = torch.randn(4000, 6, generator=torch.Generator().manual_seed(1))
    if task == "regression":
        return Table("plain", x, torch.linspace(-1, 1, 4000).unsqueeze(1), "regression")
    if task == "multilabel":
        return Table("plain", x, (x[:, :3] > 0).float(), "multilabel", ("a", "b", "c"))
    return Table("plain", x, torch.arange(4000) % 4, "classification", ("a", "b", "c", "d"))


def test_each_client_has_its_own_noise_from_none_to_the_strength() -> None:
    step = FeatureSkew("noise", 2.0)
    after = step.apply(plain(), OWNER, 8, Draw(0)).x
    added = (after - plain().x).view(8, -1).std(1)
    levels = step.levels(8, Draw(0))
    assert torch.allclose(added, levels * plain().x.std(correction=0), atol=0.03)
    assert sorted(levels.tolist()) == pytest.approx([2 * k / 7 for k in range(8)])


def test_brightness_multiplies_the_rows_of_a_client_by_its_own_factor() -> None:
    step = FeatureSkew("brightness", 0.5)
    ratio = step.apply(plain(), OWNER, 8, Draw(0)).x / plain().x
    assert torch.allclose(ratio, step.levels(8, Draw(0))[OWNER].unsqueeze(1).expand(-1, 6), atol=1e-5)
    assert (float(ratio.min()), float(ratio.max())) == pytest.approx((0.5, 1.5), abs=1e-5)


def test_a_quarter_turn_of_an_image_is_rot90() -> None:
    images = torch.rand(3, 2, 7, 7)
    for degrees, quarters in ((90.0, 1), (180.0, 2), (-90.0, -1), (0.0, 0)):
        turned = rotated(images, torch.full((3,), degrees))
        assert torch.allclose(turned, torch.rot90(images, quarters, (2, 3)), atol=1e-5)


def test_rotated_features_keep_their_length_and_turn_in_their_planes() -> None:
    x = torch.tensor([[1.0, 0.0, 0.0, 2.0, 5.0]])
    assert torch.allclose(rotated(x, torch.tensor([90.0])), torch.tensor([[0.0, 1.0, -2.0, 0.0, 5.0]]), atol=1e-6)
    many = plain().x
    assert torch.allclose(rotated(many, torch.rand(4000) * 360).norm(dim=1), many.norm(dim=1), atol=1e-4)


def test_rows_of_nobody_and_the_callers_table_stay_as_they_are() -> None:
    table, owner = plain(), OWNER.clone()
    owner[::2] = -1
    before = table.x.clone()
    after = FeatureSkew("noise").apply(table, owner, 8, Draw(0))
    assert torch.equal(table.x, before)
    assert torch.equal(after.x[::2], before[::2])
    labels = Concept(concept_share=1.0).apply(table, owner, 8, Draw(0)).y
    assert torch.equal(labels[::2], table.y[::2])


def test_a_share_of_the_clients_permutes_its_labels_each_in_one_way() -> None:
    table = plain()
    after = Concept(concept_share=0.5).apply(table, OWNER, 8, Draw(0)).y
    changed = 0
    for client in range(8):
        before_after = set(zip(table.y[client == OWNER].tolist(), after[client == OWNER].tolist(), strict=True))
        assert len(before_after) == 4
        assert {new for _, new in before_after} == {0, 1, 2, 3}
        changed += any(old != new for old, new in before_after)
    assert changed == 4
    assert Concept(concept_share=0.5).apply(table, OWNER, 8, Draw(0)).notes == (
        "concept: 4 of 8 clients have their targets changed (permute)",
    )


def test_concepts_of_two_classes_are_swapped_and_of_several_labels_exchanged() -> None:
    binary = Table("b", torch.zeros(4000, 1), (torch.arange(4000) % 2).float().unsqueeze(1), "binary", ("n", "y"))
    swapped = Concept(concept_share=1.0).apply(binary, OWNER, 8, Draw(0)).y
    assert torch.equal(swapped, 1 - binary.y)
    several = plain("multilabel")
    exchanged = Concept(concept_share=1.0).apply(several, OWNER, 8, Draw(0)).y
    assert torch.equal(exchanged.sum(1), several.y.sum(1))
    assert not torch.equal(exchanged, several.y)


def test_a_regression_changes_its_sign_or_moves() -> None:
    table = plain("regression")
    signs = (Concept(concept_share=0.25).apply(table, OWNER, 8, Draw(0)).y / table.y).view(8, -1)
    assert sorted(signs.mean(1).tolist()) == [-1, -1, 1, 1, 1, 1, 1, 1]
    moved = (Concept("offset", 1.0).apply(table, OWNER, 8, Draw(0)).y - table.y).view(8, -1)
    assert float(moved.std(1).max()) < 1e-6
    assert len(set(moved[:, 0].tolist())) == 8


@pytest.mark.parametrize(
    ("step", "task", "complaint"),
    [
        (
            FeatureSkew("blur"),
            "classification",
            "feature_skew = 'blur' cannot be: Input should be 'noise', 'rotation' or 'brightness'",
        ),  # type: ignore[arg-type]
        (
            FeatureSkew("noise", -1.0),
            "classification",
            "strength = -1.0 cannot be: Input should be greater than or equal to 0",
        ),
        (
            Concept("flip"),
            "classification",
            "concept = 'flip' cannot be: Input should be 'auto', 'permute', 'sign' or 'offset'",
        ),  # type: ignore[arg-type]
        (
            Concept(concept_share=1.5),
            "classification",
            "concept_share = 1.5 cannot be: Input should be less than or equal to 1",
        ),
        (Concept("sign"), "classification", "does not fit the classification task"),
        (Concept("permute"), "regression", "does not fit the regression task"),
    ],
)
def test_a_transform_that_does_not_fit_is_refused_before_any_work(step: object, task: str, complaint: str) -> None:
    with pytest.raises((ConfigError, DataError), match=complaint):
        federate(plain(task), clients=4, partition=["iid", step])  # type: ignore[list-item]


def test_a_single_feature_cannot_be_rotated(labelled: Make) -> None:
    with pytest.raises(DataError, match="one feature"):
        federate(labelled([0, 1]), clients=2, partition="feature-skew", feature_skew="rotation")


def test_label_size_feature_and_concept_skew_combine(labelled: Make) -> None:
    table = plain()
    plan = make_partition(
        ["classes", "quantity", "feature-skew", "concept"], classes_per_client=2, smallest=50, largest=90, strength=0.3
    )
    owned = plan.own(Pool.of(table), 10, Draw(0))
    changed = plan.transform(table, owned, Draw(0))
    sizes = owned.sizes()
    assert sizes.min() >= 50
    assert sizes.max() <= 90
    for client in range(10):
        assert len(set(table.y.numpy()[owned.owner == client])) == 2
    mine = torch.from_numpy(owned.owner >= 0)
    assert not torch.equal(changed.x[mine], table.x[mine])
    assert not torch.equal(changed.y[mine], table.y[mine])
