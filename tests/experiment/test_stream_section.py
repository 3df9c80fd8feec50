"""The [stream] section of an experiment file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedloom.errors import FedloomError
from fedloom.experiment import Experiment, load_experiment, parse_set
from fedloom.experiment.tasks import TaskSequence
from fedloom.federation.streams import Stream
from fedloom.storage import toml

SMALL = """
rounds = 3
[data]
clients = 4
[model]
name = "linear"
[fleet]
speed = 100
"""


def experiment(folder: Path, text: str, *sets: str) -> Experiment:
    path = folder / "exp.toml"
    path.write_text(text, encoding="utf-8")
    return Experiment.load(path, [parse_set(one) for one in sets])


def test_a_file_says_how_rows_arrive(tmp_path: Path) -> None:
    text = SMALL + '[stream]\nstart = "uniform:0.1:0.3"\nrate = 2\norder = "shuffled"\n'
    found = experiment(tmp_path, text, "stream.burst=4")
    assert found.stream == Stream(start="uniform:0.1:0.3", rate=2, order="shuffled", burst=4)
    assert experiment(tmp_path, SMALL).stream is None
    assert "stream" not in experiment(tmp_path, SMALL).resolved()


def test_a_run_can_be_done_again_from_what_it_wrote_down(tmp_path: Path) -> None:
    text = SMALL + '[stream]\nstart = 0.1\ngrowth = "uniform:0.01:0.1"\nprocess = "poisson"\ndrift = 0.25\n'
    first = experiment(tmp_path, text)
    written = tmp_path / "again.toml"
    written.write_text(toml.dumps(first.resolved()), encoding="utf-8")
    again = Experiment.load(written)
    assert again.stream == first.stream
    assert again.resolved() == first.resolved()
    one, other = first.run(tmp_path / "one"), again.run()
    assert one.summary["theta_sha256"] == other.summary["theta_sha256"]
    assert [row["prequential"] for row in one.history[1:]] == [row["prequential"] for row in other.history[1:]]
    assert Experiment.load(tmp_path / "one" / "config.toml").start(tmp_path / "one") is None  # it is done already


def test_tasks_in_sequence_have_the_stream_of_the_file(tmp_path: Path) -> None:
    text = SMALL + '[stream]\nduration = 5\n[[task]]\nclasses = "first half"\n[[task]]\nclasses = "second half"\n'
    path = tmp_path / "exp.toml"
    path.write_text(text, encoding="utf-8")
    tasks = load_experiment(path)
    assert isinstance(tasks, TaskSequence)
    assert [one.stream for one in tasks.experiments] == [Stream(duration=5)] * 2


def refusal(folder: Path, text: str, *sets: str) -> str:
    with pytest.raises(FedloomError) as caught:
        experiment(folder, text, *sets).check()
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[stream]\nstart = 0.2", "exp.toml:1: stream does not say how fast rows come; give one of rate, growth"),
        ("[stream]\nrate = 1\nduration = 3", "exp.toml:3: stream.duration = 3 cannot be beside stream.rate: keep one"),
        ("[stream]\nrte = 1", "exp.toml:2: stream.rte = 1 is no setting of the stream; did you mean 'rate'?"),
        ('[stream]\nrate = "fast"', "exp.toml:2: stream.rate = \"fast\" cannot be: 'fast' is no distribution"),
        ("[stream]\nrate = -1", "exp.toml:2: stream.rate = -1 cannot be: -1 is no distribution of non-negative"),
        ("[stream]\nrate = 1\nstart = 3", "exp.toml:3: stream.start = 3 should be a share of at most 1"),
        ("[stream]\nrate = 1\nburst = 0", "exp.toml:3: stream.burst = 0 should be a whole number of at least 1"),
        (
            '[stream]\nrate = 1\norder = "labels"',
            'stream.order = "labels" should be one of given, shuffled, label; did',
        ),
        (
            "[stream]\nrate = 1\ndrift = 1.0",
            "exp.toml:3: stream.drift = 1.0 should be a number of at least 0 and below 1",
        ),
        ("[stream]\ntimestamps = true\nburst = 3", "exp.toml:3: stream.burst = 3 cannot be beside stream.timestamps"),
        (
            "[stream]\ntimestamps = true",
            "exp.toml:1: stream cannot be: stream.timestamps = true, but the rows of 'digits'",
        ),
        ("[stream]\nrate = 0\nstart = 0", "exp.toml:1: stream cannot be: no row would ever come to client 0 (and 19"),
        (
            "[stream]\nrate = 1",
            "exp.toml:1: stream cannot be: rows come by the simulated clock, but on this fleet a round",
        ),
        (
            '[data]\nname = "quadratics"\n[stream]\nrate = 1\norder = "label"',
            "exp.toml:3: stream cannot be: stream.order",
        ),
        (
            '[data]\npartition = "features"\n[method]\nname = "sharing-admm"\n[stream]\nrate = 1',
            "hold columns of the same",
        ),
        ("stream = 3", "exp.toml:1: stream = 3 should be a table: write [stream] above its keys"),
    ],
)
def test_a_stream_that_cannot_be_is_refused_with_key_place_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


def test_rows_of_a_file_come_by_its_column_of_times(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lines = ["who,when,a,b,label"]
    for k in range(60):
        a, b = random.normal(size=2)
        lines.append(f"{'xy'[k % 2]},2024-01-01T00:{k % 60:02d}:00,{a:.3f},{b:.3f},{int(a > b)}")
    (tmp_path / "own.csv").write_text("\n".join(lines), encoding="utf-8")
    text = (
        'rounds = 4\n[data]\npath = "own.csv"\nclient_column = "who"\nlabel_column = "label"\n'
        'timestamp_column = "when"\nchronological = true\n[fleet]\ndelay_up = 10\n'
        "[stream]\ntimestamps = true\nstart = 0.25\nspeedup = 60\n"
    )
    done = experiment(tmp_path, text).run()
    # 24 rows of each of two clients are for training, the last 6 for the test: 12 at the start, then one a second
    assert [row["arrived"] for row in done.history] == [12, 22, 32, 42, 48]
    assert [row["prequential"]["rows"] for row in done.history[1:]] == [12, 10, 10, 10]
