"""Who has what, and how much clients differ: in labels, sizes, features, and (given a model) gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedloom.federation.data import TARGET, FederatedData

if TYPE_CHECKING:
    from plotly.graph_objects import Figure
    from rich.table import Table as RichTable

LISTED = 200
"""At most so many clients are listed one by one."""
_CHUNK = 4096  # rows that are looked at at a time


@dataclass(frozen=True, eq=False)
class Description:
    """A federation's data in numbers: rows per client and class, and the measures of :func:`measures`."""

    data: FederatedData
    counts: Tensor
    heterogeneity: dict[str, float]

    def record(self) -> dict[str, Any]:
        """The content of a run's data.json; at most the first 200 clients are listed."""
        data, listed = self.data, min(self.data.clients, LISTED)
        return {
            "name": data.name,
            "task": data.task,
            "clients": data.clients,
            "classes": list(data.classes),
            "labels": [data.label(client) for client in range(listed)],
            "counts": self.counts[:listed].tolist(),
            "roles": [self._role(client) for client in range(listed)],
            "sizes": {split: data.splits[split].sizes[:listed].tolist() for split in _whole(data)},
            "notes": list(data.notes),
            **({"columns": [len(one) for one in data.blocks.columns[:listed]]} if data.blocks is not None else {}),
            "heterogeneity": self.heterogeneity,
        }

    def table(self, limit: int = 20) -> RichTable:
        """A table for the terminal: the first clients one by one, the measures below."""
        from rich.table import Table as RichTable

        data = self.data
        title, caption = f"{data.name}: {data.clients} clients, {data.task}", self._caption(limit)
        shown = RichTable(title=title, caption=caption, caption_justify="left")
        shown.add_column("client")
        shown.add_column("role")
        for split in _whole(data):
            shown.add_column(split, justify="right")
        shown.add_column("who has what" if data.classes else "rows", overflow="fold")
        for client in range(min(limit, data.clients)):
            sizes = [f"{int(data.splits[split].sizes[client]):,}" for split in _whole(data)]
            shown.add_row(data.label(client), self._role(client), *sizes, self._holds(client))
        return shown

    def figure(self) -> Figure:
        """A plotly drawing of who has which labels: stacked bars, or a heat map where classes are many."""
        import plotly.graph_objects as go

        listed = min(self.data.clients, LISTED)
        names, counts = [self.data.label(client) for client in range(listed)], self.counts[:listed]
        classes = list(self.data.classes) or ["rows"]
        if len(classes) > 20:
            figure = go.Figure(go.Heatmap(x=names, y=classes, z=counts.T.tolist(), colorbar={"title": "rows"}))
        else:
            bars = [go.Bar(x=names, y=counts[:, c].tolist(), name=label) for c, label in enumerate(classes)]
            figure = go.Figure(bars, {"barmode": "stack", "yaxis": {"title": "rows"}})
        figure.update_layout(title=f"Who has what: {self.data.name}", xaxis={"title": "client", "type": "category"})
        return figure

    def _role(self, client: int) -> str:
        roles = self.data.roles
        return "target" if roles is not None and int(roles[client]) == TARGET else "source"

    def _holds(self, client: int) -> str:
        if self.data.blocks is not None:
            columns = self.data.blocks.columns[client].tolist()
            return f"columns {', '.join(map(str, columns[:12]))}{', …' if len(columns) > 12 else ''}"
        row = self.counts[client].tolist()
        if not self.data.classes or not self.data.here:
            return f"{row[0]:,}"
        return "  ".join(f"{label}: {rows:,}" for label, rows in zip(self.data.classes, row, strict=True) if rows)

    def _caption(self, limit: int) -> str:
        lines = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in self.heterogeneity.items()]
        hidden = self.data.clients - limit
        more = [f"and {hidden:,} clients more"] if hidden > 0 else []
        return "\n".join([*more, ", ".join(lines), *self.data.notes])


def describe(data: FederatedData) -> Description:
    """Count who has what, and measure how much clients differ.

    * ``data``: the federation.

    The result is a Description: ``counts`` (rows of each client and class), ``heterogeneity`` (the measures by name),
    ``table()`` for the terminal and ``figure()`` for a page.

        data = fedloom.federate("digits", clients=5, partition="dirichlet", alpha=0.3)
        found = fedloom.describe(data)
        print(found.counts.shape, found.heterogeneity["label_total_variation"])
    """
    counts = label_counts(data)
    return Description(data, counts, measures(data, counts))


def measures(data: FederatedData, counts: Tensor) -> dict[str, float]:
    """All measures that need no model; those of labels only where rows have classes; none where rows are shared.

    Where the rows are elsewhere, only those of the clients' sizes.
    """
    if data.layout == "features":
        return {}
    sizes = (data.splits["train"].sizes + data.splits["test"].sizes).double()
    found = size_imbalance(sizes)
    if not data.here:
        return found
    if data.task in ("classification", "binary"):
        found |= label_distance(counts)
    found["feature_shift"] = mean_shift(data, data.x)
    if data.task == "regression":
        found["target_shift"] = mean_shift(data, data.y)
    return found


def label_counts(data: FederatedData) -> Tensor:
    """Rows of each class that each client has, train and test together; without known classes, rows of each client.

    For several labels a row: rows that have the label.
    """
    owner, rows = _owned(data)
    if data.task == "regression" or not data.here:
        return torch.bincount(owner, minlength=data.clients).unsqueeze(1)
    if data.task == "multilabel":
        positive = torch.nan_to_num(data.y[rows]).to(torch.int64)
        return torch.zeros(data.clients, positive.shape[1], dtype=torch.int64).index_add_(0, owner, positive)
    labels = data.y[rows].flatten().to(torch.int64)
    classes = max(len(data.classes), 2)
    cells = torch.bincount(owner * classes + labels, minlength=data.clients * classes)
    return cells.view(data.clients, classes)


def label_distance(counts: Tensor) -> dict[str, float]:
    """Mean distance of a client's label distribution from that of all rows.

    Total variation ½ Σ|p_ic - p_c| and Jensen-Shannon divergence in bits; both are 0 where all are alike and at most 1.
    """
    counts = counts[counts.sum(1) > 0].double()
    p, q = counts / counts.sum(1, keepdim=True), counts.sum(0) / counts.sum()
    middle = (p + q) / 2
    jensen_shannon = (_divergence(p, middle) + _divergence(q.expand_as(p), middle)) / 2
    variation = (p - q).abs().sum(1) / 2
    return {"label_total_variation": float(variation.mean()), "label_jensen_shannon": float(jensen_shannon.mean())}


def size_imbalance(sizes: Tensor) -> dict[str, float]:
    """How unequal clients are in size: Gini's coefficient, largest over smallest, and the effective number of clients.

    The effective number is (Σ n_i)² / Σ n_i²: how many clients of equal size would weigh the same.
    """
    ordered, n = sizes.double().sort().values, len(sizes)
    rank = torch.arange(1, n + 1, dtype=torch.float64)
    total = ordered.sum()
    gini = (2 * (rank * ordered).sum() / total - (n + 1)) / n
    smallest = max(float(ordered[0]), 1.0)
    return {
        "size_gini": float(gini),
        "size_ratio": float(ordered[-1]) / smallest,
        "effective_clients": float(total**2 / (ordered**2).sum()),
    }


def mean_shift(data: FederatedData, values: Tensor) -> float:
    """The share of the values' variance that lies between clients: Σ n_i ‖μ_i - μ‖² / Σ ‖x - μ‖², 0 to 1.

    Equal clients still have about (clients - 1) / rows of it by chance.
    """
    owner, rows = _owned(data)
    order = owner.argsort(stable=True)
    owner, rows, sizes = owner[order], rows[order], torch.bincount(owner, minlength=data.clients)
    total, squares, between = torch.zeros(values[0].numel(), dtype=torch.float64), 0.0, 0.0
    last, carried = -1, torch.zeros_like(total)  # the sum of a client whose rows go on in the next part
    for start in range(0, len(rows), _CHUNK):
        part = values[rows[start : start + _CHUNK]].flatten(1).double()
        ids, place = torch.unique_consecutive(owner[start : start + _CHUNK], return_inverse=True)
        sums = torch.zeros(len(ids), part.shape[1], dtype=torch.float64).index_add_(0, place, part)
        total += sums.sum(0)
        squares += float((part**2).sum())
        if int(ids[0]) == last:
            sums[0] += carried
        else:
            between += float((carried**2).sum()) / max(int(sizes[last]), 1)
        between += float((sums[:-1] ** 2 / sizes[ids[:-1]].unsqueeze(1)).sum())
        last, carried = int(ids[-1]), sums[-1]
    between += float((carried**2).sum()) / max(int(sizes[last]), 1)
    centre = float((total**2).sum()) / max(len(rows), 1)
    return max(0.0, between - centre) / (squares - centre) if squares > centre else 0.0


def gradient_heterogeneity(
    gradients: Tensor, within: Tensor | None = None, weights: Tensor | None = None
) -> dict[str, float]:
    """How much clients' gradients differ, from one gradient per client: ``gradients`` has shape (clients, n).

    ``between`` is E‖∇f_i - ∇f‖² with ∇f = E ∇f_i, E over clients by ``weights`` (equal by default). ``within`` takes
    each client's E_s‖∇f_is‖² over its samples s and gives the mean of E_s‖∇f_is - ∇f_i‖² = E_s‖∇f_is‖² - ‖∇f_i‖².
    """
    gradients = gradients.double()
    p = torch.ones(len(gradients), dtype=torch.float64) if weights is None else weights.double()
    p = p / p.sum()
    mean = p @ gradients
    found = {
        "between": float(p @ ((gradients - mean) ** 2).sum(1)),
        "squared_norm": float((mean**2).sum()),
    }
    if within is not None:
        found["within"] = float(p @ (within.double() - (gradients**2).sum(1)).clamp(min=0))
    return found


def _whole(data: FederatedData) -> list[str]:
    """The splits that have every row once."""
    return [split for split in ("train", "validation", "test") if split in data.splits]


def _owned(data: FederatedData) -> tuple[Tensor, Tensor]:
    """Client and row number of every row."""
    owners, rows = [], []
    for split in _whole(data):
        ragged = data.splits[split]
        owners.append(torch.repeat_interleave(torch.arange(data.clients), ragged.sizes))
        rows.append(ragged.resolve(torch.arange(int(ragged.offsets[0]), int(ragged.offsets[-1]))))
    return torch.cat(owners), torch.cat(rows)


def _divergence(p: Tensor, q: Tensor) -> Tensor:
    """Kullback and Leibler's divergence in bits, row by row."""
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(1) / torch.log(torch.tensor(2.0, dtype=torch.float64))
