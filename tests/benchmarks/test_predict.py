"""The benchmark of prediction measures what it says, on fewer rows."""

from __future__ import annotations

import pytest

from benchmarks import predict


def test_the_benchmark_of_prediction_runs_and_says_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "ROWS", 300)
    monkeypatch.setattr(predict, "command", lambda run, data, out: len(data.read_text().splitlines()) / 1e3)
    found = predict.race(1)
    assert found["rows_per_second"] > 0
    assert found["rows_per_second_file_to_file"] == round(300 / (0.301 - 0.006))
    assert predict.sentence(found | {"rows_per_second": 1_200_000}).startswith(
        "PREDICT: 1,200,000 rows a second by an mlp over 20 columns (at least 200,000), 1,017 from a file to a file;"
    )
