"""Graphs of clients: which are to have like models, and how much that counts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.errors import DataError

_EDGE = re.compile(r"(\d{1,9})-(\d{1,9})(?::([0-9.eE+-]+))?")
_SHOWN = 4  # parts of a graph, and clients of a part, that a message names

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Graph:
    """Undirected edges between clients, each once, with a weight above 0."""

    ends: Tensor
    """The two clients of each edge, the lower id first, shape (edges, 2)."""
    weight: Tensor
    """a_kl of each edge, in float64."""

    @staticmethod
    def of(edges: Iterable[tuple[int, int, float]]) -> Graph:
        """From edges, each once, in the order of their ids."""
        known = sorted((min(k, j), max(k, j), a) for k, j, a in edges if a > 0)
        ends = torch.tensor([(k, j) for k, j, _ in known], dtype=torch.int64).reshape(-1, 2)
        return Graph(ends, torch.tensor([a for _, _, a in known], dtype=torch.float64))

    @staticmethod
    def read(text: str, clients: int) -> Graph:
        """From a text such as "0-1,1-2:0.5", or from a file: rows "k,l" or "k,l,a", or a matrix of all a_kl.

        A file of two or three columns has an edge in each row; one of more, or one in NumPy's format (.npy), is a
        matrix. Refuses what is not symmetric, not finite, below 0, or of clients that there are not.
        """
        pieces = [piece.strip() for piece in text.split(",")]
        if all(_EDGE.fullmatch(piece) for piece in pieces):
            found = [match.groups() for piece in pieces if (match := _EDGE.fullmatch(piece))]
            return Graph._checked([(int(k), int(j), _number(a, text)) for k, j, a in found], clients, repr(text))
        return Graph._of_file(Path(text), clients)

    @staticmethod
    def _of_file(path: Path, clients: int) -> Graph:
        if not path.is_file():
            raise DataError(
                f"the graph {str(path)!r} is neither a file nor edges; give a file of rows k,l,a, a matrix, or edges "
                "such as '0-1,1-2:0.5'"
            )
        table = table_of(path, "graph")
        if table.ndim != 2 or table.shape[1] < 2 or not len(table):
            raise DataError(f"the graph {str(path)!r} has no rows of at least two numbers; a row is k,l or k,l,a")
        if path.suffix == ".npy" or table.shape[1] > 3:
            return Graph._of_matrix(table, clients, str(path))
        if not np.isfinite(table[:, :2]).all() or (table[:, :2] != table[:, :2].round()).any():
            raise DataError(f"the graph {str(path)!r}: the first two columns are ids of clients, whole numbers")
        weight = table[:, 2] if table.shape[1] == 3 else np.ones(len(table))
        rows = zip(table[:, 0].astype(int).tolist(), table[:, 1].astype(int).tolist(), weight.tolist(), strict=True)
        return Graph._checked(list(rows), clients, repr(str(path)))

    @staticmethod
    def _of_matrix(a: Floats, clients: int, path: str) -> Graph:
        if a.shape != (clients, clients):
            shape = " × ".join(map(str, a.shape))
            raise DataError(
                f"the graph {path!r} is a matrix of {shape}, but there are {clients} clients: it needs a row and a "
                "column for each"
            )
        odd = np.argwhere((a != a.T) & ~(np.isnan(a) & np.isnan(a.T)))
        if len(odd):
            k, j = odd[0].tolist()
            raise DataError(
                f"the graph {path!r} is not symmetric: a[{k}, {j}] = {a[k, j]:g}, but a[{j}, {k}] = {a[j, k]:g}; what "
                "two clients are to each other is one number"
            )
        k, j = np.nonzero(np.triu(a, 1))
        edges = list(zip(k.tolist(), j.tolist(), a[k, j].tolist(), strict=True))
        return Graph._checked(edges, clients, repr(path))

    @staticmethod
    def _checked(edges: list[tuple[int, int, float]], clients: int, what: str) -> Graph:
        seen: dict[tuple[int, int], float] = {}
        for k, j, a in edges:
            if not (0 <= k < clients and 0 <= j < clients):
                raise DataError(f"the graph {what} has the edge {k}-{j}, but clients are numbered 0 to {clients - 1}")
            if k == j:
                raise DataError(f"the graph {what} has an edge from client {k} to itself; leave it out")
            if not (a >= 0 and math.isfinite(a)):
                raise DataError(f"the graph {what}: the edge {k}-{j} has the weight {a:g}; a weight is at least 0")
            key = (min(k, j), max(k, j))
            if seen.setdefault(key, a) != a:
                raise DataError(
                    f"the graph {what} is not symmetric: the edge {k}-{j} has the weights {seen[key]:g} and {a:g}; "
                    "what two clients are to each other is one number"
                )
        return Graph.of([(k, j, a) for (k, j), a in seen.items()])

    def among(self, present: Tensor) -> Graph:
        """The edges both of whose clients are there (a mask by id)."""
        kept = present[self.ends].all(1)
        return Graph(self.ends[kept], self.weight[kept])

    def differences(self, values: Tensor) -> Tensor:
        """Σ_l a_kl (v_k − v_l) of each client: the graph's Laplacian times a column with one row a client."""
        k, j = self.ends.T
        apart = self.weight.to(values.dtype).unsqueeze(-1) * (values[k] - values[j])
        return torch.zeros_like(values).index_add_(0, k, apart).index_add_(0, j, -apart)

    def degree(self, clients: int) -> float:
        """The greatest Σ_l a_kl of a client; the Laplacian has no eigenvalue above twice that."""
        total = torch.zeros(clients, dtype=torch.float64)
        for end in self.ends.T:
            total.index_add_(0, end, self.weight)
        return float(total.max()) if clients else 0.0

    def parts(self, clients: Iterable[int]) -> list[list[int]]:
        """The clients in the parts of the graph that no edge connects, each in order of id, the first by lowest id."""
        root = {client: client for client in clients}

        def found(client: int) -> int:
            while root[client] != client:
                root[client] = client = root[root[client]]
            return client

        for k, j in self.ends.tolist():
            if k in root and j in root:
                low, high = sorted((found(k), found(j)))
                root[high] = low
        parts: dict[int, list[int]] = {}
        for client in root:
            parts.setdefault(found(client), []).append(client)
        return [sorted(part) for part in parts.values()]


def nearest(points: Tensor, who: Tensor, among: Tensor, count: int) -> Tensor:
    """For each of some clients the ids of so many others whose points are nearest, ties by id, shape (who, count)."""
    distances = torch.cdist(points[who].double(), points[among].double())
    distances[who.unsqueeze(-1) == among] = math.inf
    return among[distances.argsort(dim=-1, stable=True)[:, :count]]


def in_words(parts: list[list[int]]) -> str:
    """The parts of a graph, for a message."""
    shown = [", ".join(map(str, part[:_SHOWN])) + (", …" if len(part) > _SHOWN else "") for part in parts[:_SHOWN]]
    return "; ".join(shown) + ("; …" if len(parts) > _SHOWN else "")


def _number(text: str | None, what: str) -> float:
    try:
        return 1.0 if text is None else float(text)
    except ValueError:
        raise DataError(f"the graph {what!r}: {text!r} is no weight; an edge is such as 1-2:0.5") from None


def table_of(path: Path, what: str) -> Floats:
    """The numbers of a file, in NumPy's format (.npy) or as text, as rows and columns; ``what`` they are to be."""
    try:
        if path.suffix == ".npy":
            table: Floats = np.load(path, allow_pickle=False).astype(np.float64)
        else:
            lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
            split = [re.split(r"[,;\s]+", line.strip()) for line in lines]
            if split and not re.fullmatch(r"[-+0-9.eE]+|nan", split[0][0], re.IGNORECASE):  # the columns' names
                split = split[1:]
            table = np.array(split, dtype=np.float64)
    except (OSError, ValueError) as error:
        raise DataError(f"the {what} {str(path)!r} cannot be read as rows of numbers: {error}") from None
    return table
