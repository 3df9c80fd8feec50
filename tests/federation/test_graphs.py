"""Graphs of clients: how they are read, refused, and taken apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedloom.errors import DataError
from fedloom.federation.graphs import Graph, in_words, nearest


def edges(graph: Graph) -> list[tuple[int, int, float]]:
    return [(k, j, a) for (k, j), a in zip(graph.ends.tolist(), graph.weight.tolist(), strict=True)]


CHAIN = [(0, 1, 0.5), (1, 2, 1.0), (2, 3, 2.0)]


def test_one_graph_in_every_way_of_writing_it(tmp_path: Path) -> None:
    matrix = np.zeros((4, 4))
    for k, j, a in CHAIN:
        matrix[k, j] = matrix[j, k] = a
    np.save(tmp_path / "a.npy", matrix)
    np.savetxt(tmp_path / "matrix.csv", matrix, delimiter=",")
    (tmp_path / "edges.csv").write_text("k,l,a\n1,0,0.5\n1,2,1\n\n3,2,2\n2,3,2\n")
    (tmp_path / "edges.txt").write_text("0 1 0.5\n1 2 1\n2 3 2\n0 3 0\n")
    texts = ["0-1:0.5,1-2,2-3:2", "3-2:2.0, 1-0:5e-1, 2-1"]
    texts += [str(tmp_path / name) for name in ("a.npy", "matrix.csv", "edges.csv", "edges.txt")]
    assert [edges(Graph.read(text, 4)) for text in texts] == [CHAIN] * 6


@given(arrays(np.float64, (5, 5), elements=st.floats(0, 3)), arrays(np.float64, (5, 2), elements=st.floats(-9, 9)))
def test_differences_are_the_laplacian(a: np.ndarray, values: np.ndarray) -> None:
    a = np.triu(a, 1)
    graph = Graph.of([(k, j, float(a[k, j])) for k in range(5) for j in range(k + 1, 5)])
    a = a + a.T
    laplacian = np.diag(a.sum(1)) - a
    np.testing.assert_allclose(graph.differences(torch.from_numpy(values)).numpy(), laplacian @ values, atol=1e-9)
    assert np.linalg.eigvalsh(laplacian).max() <= 2 * graph.degree(5) + 1e-9


def test_parts_that_no_edge_connects() -> None:
    parts = Graph.of([(0, 3, 1.0), (3, 5, 1.0), (1, 2, 1.0)]).parts([0, 1, 2, 3, 4, 5])
    assert parts == [[0, 3, 5], [1, 2], [4]]
    assert in_words(parts) == "0, 3, 5; 1, 2; 4"
    assert in_words([list(range(9))] * 5) == "; ".join(["0, 1, 2, 3, …"] * 4) + "; …"


def test_the_nearest_are_others_and_ties_go_to_the_lowest() -> None:
    points = torch.tensor([[0.0], [1.0], [1.0], [5.0], [5.5]])
    everybody = torch.arange(5)
    assert nearest(points, everybody, everybody, 2).tolist() == [[1, 2], [2, 0], [1, 0], [4, 1], [3, 1]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nowhere.csv", "neither a file nor edges"),
        ("0-9", "numbered 0 to 3"),
        ("2-2", "client 2 to itself"),
        ("0-1:-1", "weight is at least 0"),
        ("0-1:1e", "no weight"),
        ("0-1,1-0:2", "not symmetric: the edge 1-0 has the weights 1 and 2"),
    ],
)
def test_a_text_that_is_no_graph_is_refused(text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Graph.read(text, 4)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("0,1,2,3\n1,0,2,3\n2,5,0,3\n3,3,3,0\n", r"not symmetric: a\[1, 2\] = 2, but a\[2, 1\] = 5"),
        ("0,1,2,3\n1,0,2,3\n", "matrix of 2 × 4, but there are 4 clients"),
        ("0,1\n1\n", "cannot be read as rows of numbers"),
        ("0,x\n", "cannot be read as rows of numbers"),
        ("0.5,1\n", "whole numbers"),
        ("nan,1\n", "whole numbers"),
        ("7\n", "at least two numbers"),
        ("", "at least two numbers"),
        ("0,1,inf\n", "weight"),
        ("0,nan,0,0\nnan,0,0,0\n0,0,0,0\n0,0,0,0\n", "weight"),
    ],
)
def test_a_file_that_is_no_graph_is_refused(rows: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "graph.csv"
    path.write_text(rows)
    with pytest.raises(DataError, match=said):
        Graph.read(str(path), 4)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read"):
        Graph.read(str(tmp_path / "a.npy"), 4)
