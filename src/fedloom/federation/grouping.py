"""Points into groups: k-means from starts that are far apart, and how well groups are told apart."""

from __future__ import annotations

import torch
from torch import Tensor

_ITERATIONS = 100


def by_means(points: Tensor, groups: int) -> Tensor:
    """The group of each point, by k-means; nothing is drawn, and the order of the points does not matter.

    It begins at points that are far apart: the one nearest to (or farthest from) the mean, then always the one that
    is farthest from those before; of the two ends the one with the smaller sum of squares counts.
    """
    points = points.double()
    away = (points - points.mean(0)).square().sum(-1)
    found = [_lloyd(points, _spread(points, int(start), groups)) for start in (away.argmin(), away.argmax())]
    errors = [float((points - centres[group]).square().sum()) for group, centres in found]
    return found[int(errors[1] < errors[0])][0]


def _spread(points: Tensor, first: int, groups: int) -> Tensor:
    chosen = [first]
    nearest = (points - points[first]).square().sum(-1)
    for _ in range(groups - 1):
        chosen.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, (points - points[chosen[-1]]).square().sum(-1))
    return points[chosen]


def _lloyd(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    group = torch.full((len(points),), -1)
    for _ in range(_ITERATIONS):
        before, group = group, torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(-1)
        if torch.equal(before, group):
            break
        own = torch.nn.functional.one_hot(group, len(centres)).to(points.dtype)
        count = own.sum(0).unsqueeze(-1)
        centres = torch.where(count > 0, own.T @ points / count.clamp(min=1), centres)  # an empty group stays
    return group, centres


def silhouette(points: Tensor, group: Tensor) -> float:
    """The mean of (b − a)/max(a, b) over all points: a is the mean distance to the others of its group, b that to the
    nearest other group; 0 for a point alone. 1: groups far apart; 0: no groups (Rousseeuw, 1987)."""
    points = points.double()
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    own = torch.nn.functional.one_hot(group).double()
    sizes = own.sum(0)
    total = distances @ own  # of each point to each group
    inside = own.bool()
    alone = sizes[group] == 1
    a = total[inside] / (sizes[group] - 1).clamp(min=1)
    b = (total / sizes).masked_fill(inside | (sizes == 0), torch.inf).amin(-1)
    worth = (b - a) / torch.maximum(a, b).clamp(min=torch.finfo(points.dtype).tiny)
    return float(torch.where(alone, 0.0, worth).mean())


def by_silhouette(points: Tensor, most: int, least: float = 0.25) -> Tensor:
    """The same for the number of groups, 2 to ``most``, with the best silhouette; one group if the best is at most
    ``least``, below which Kaufman and Rousseeuw (1990) see no substantial structure."""
    best, found = least, torch.zeros(len(points), dtype=torch.int64)
    for groups in range(2, min(most, len(points) - 1) + 1):
        group = by_means(points, groups)
        if int(group.bincount(minlength=groups).min()) > 0 and (worth := silhouette(points, group)) > best:
            best, found = worth, group
    return found
