"""What a fleet agrees on before its first round: columns, classes, scales, and so the numbers of the simulator."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Message
from flwr.app.message import make_message

sys.path.insert(0, str(Path(__file__).parent))
from local_grid import LocalGrid, LocalNode

from fedloom.deploy import Terms, serve
from fedloom.deploy.codec import decode, encode
from fedloom.deploy.reading import summed
from fedloom.deploy.rows import fleet_experiment
from fedloom.engine.run import Run
from fedloom.errors import ConfigError, MessageError, RunError
from fedloom.experiment import Experiment
from fedloom.prediction import Predictor

NAMES = ("graz", "lyon", "oslo")
EXPERIMENT = """
rounds = 3
seed = 4
{top}
[data]
label_column = "{label}"
task = "{task}"
drop = ["id"]
{data}
[model]
name = "{model}"
[method]
name = "{method}"
lr = 0.05
batch = 8
[evaluation]
every = 0
[execution]
stack = 1
executor = "serial"
"""


def rows(hospital: int, count: int = 40) -> pd.DataFrame:
    """What a hospital has: texts that others do not know, gaps, large numbers, and a date."""
    random = np.random.default_rng(hospital)
    frame = pd.DataFrame(
        {
            "id": [f"{hospital}-{k}" for k in range(count)],
            "age": random.integers(20, 90, count),
            "pressure": np.where(random.random(count) < 0.2, np.nan, 120 + 15 * random.normal(size=count)),
            "ward": random.choice([f"ward {hospital}", "emergency", "surgery"], count),
            "admitted": pd.date_range(f"202{hospital}-03-01", periods=count, freq="31h").strftime("%Y-%m-%d"),
            "smokes": random.choice([True, False], count),
            "salt": np.full(count, np.nan) if hospital == 1 else random.normal(size=count).round(3),
        }
    )
    risk = frame["age"] / 30 + frame["smokes"] + random.normal(size=count)
    return frame.assign(outcome=np.where(risk > 2.5, "died", "lived"), cost=1e7 + 40 * risk)


def project(tmp_path: Path, **written: str) -> Path:
    """A fleet's app and a file for each of its nodes."""
    folder = tmp_path / "app"
    folder.mkdir(parents=True)
    given = {"top": "", "label": "outcome", "task": "binary", "data": "", "model": "mlp", "method": "fedavg"} | written
    leave = "cost" if given["label"] == "outcome" else "outcome"
    text = EXPERIMENT.format(**given).replace('drop = ["id"]', f'drop = ["id", "{leave}"]')
    (folder / "experiment.toml").write_text(text)
    for number, name in enumerate(NAMES):
        rows(number).to_csv(tmp_path / f"{name}.csv", index=False)
    return folder


def nodes(folder: Path, names: tuple[str, ...] = NAMES) -> LocalGrid:
    configs = [
        {"name": name, "rows": str(folder.parent / f"{name}.csv"), "state": str(folder / f"state-{name}")}
        for name in names
    ]
    return LocalGrid(LocalNode(config, folder) for config in configs)


def deployed(folder: Path, grid: LocalGrid, out: str = "run", **terms: Any) -> Run:
    chosen = {"nodes": 3, "wait": 1.0, "deadline": 1.0, **terms}
    return serve(grid, fleet_experiment(folder / "experiment.toml"), Terms(out=str(folder / out), **chosen))


def simulated(folder: Path, names: tuple[str, ...] = NAMES) -> Run:
    paths = [str(folder.parent / f"{name}.csv") for name in names]
    return Experiment.load(folder / "experiment.toml", {"data.path": paths}).run(folder / "simulated")


CASES = {
    "standard": {},
    "min-max": {"data": 'scaling = "min-max"'},
    "none": {"data": 'scaling = "none"\nmissing = "indicator"'},
    "regression": {"label": "cost", "task": "regression", "top": 'dtype = "float64"'},
    "embedded": {"data": "embed_from = 2\nvalidation = 0.2", "model": "linear"},
    "one class against the rest": {"task": "classification", "data": 'positive = "died"'},
    "chronological": {"data": 'timestamp_column = "admitted"\nchronological = true', "method": "scaffold"},
}


@pytest.mark.parametrize("case", CASES)
def test_nodes_with_files_of_their_own_train_on_the_numbers_of_the_simulator(tmp_path: Path, case: str) -> None:
    folder = project(tmp_path, **CASES[case])
    run, expected = deployed(folder, nodes(folder)), simulated(folder)
    assert run.summary["theta_sha256"] == expected.summary["theta_sha256"]
    assert run.summary["metrics"] == pytest.approx(expected.summary["metrics"], rel=1e-6)
    new = rows(2).drop(columns=["id", "outcome", "cost"])
    ours, theirs = (Predictor.open(folder / out).predict(new) for out in ("run", "simulated"))
    if case == "none":  # where the simulator fills by the mean of filled rows
        ours, theirs = ours[new["pressure"].notna()], theirs[new["pressure"].notna()]
    pd.testing.assert_frame_equal(ours, theirs, rtol=1e-9)


def test_what_was_agreed_is_said_and_kept_and_no_row_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = project(tmp_path)
    text = (folder / "experiment.toml").read_text()
    (folder / "experiment.toml").write_text(text.replace('drop = ["id", "cost"]', 'drop = ["cost"]'))
    grid, told = nodes(folder), list[str]()
    grid.nodes[100].says = lambda message, _: told.append(json.dumps(decode(message.content))) or message
    with caplog.at_level(logging.INFO, "flwr"):
        run = deployed(folder, grid)
    said = "standardised by counts, sums and sums of squares of 3 clients"
    assert f"agreed: {said}" in caplog.messages
    assert said in run.notes
    kept = (folder / "run" / "fleet.json").read_text()
    agreed = json.loads(kept)["agreed"]
    assert agreed["classes"] == ["died", "lived"]
    wards = next(column for column in agreed["encoding"] if column["name"] == "ward")
    assert wards["categories"] == ["emergency", "surgery", "ward 0", "ward 1", "ward 2"]
    assert "ward 0" in told[0]
    values = [*rows(0)["id"], *map(str, rows(0)["pressure"].dropna()), *rows(0)["admitted"]]
    assert not any(f'"{value}"' in text for value in values for text in (kept, *told))


def test_nodes_of_one_table_agree_on_its_scale_and_the_server_can_use_the_model(tmp_path: Path) -> None:
    folder = project(tmp_path, model="linear", data='client_column = "hospital"')
    every = [rows(number).assign(hospital=name) for number, name in enumerate(NAMES)]
    pd.concat(every).to_csv(tmp_path / "all.csv", index=False)
    text = (folder / "experiment.toml").read_text()
    (folder / "experiment.toml").write_text(text.replace("[data]", f'[data]\npath = "{tmp_path / "all.csv"}"'))
    configs = [{"client": number, "state": str(folder / f"state-{number}")} for number in range(3)]
    run = deployed(folder, LocalGrid(LocalNode(config, folder) for config in configs))
    expected = Experiment.load(folder / "experiment.toml").run(folder / "simulated")
    assert run.summary["theta_sha256"] == expected.summary["theta_sha256"]
    ours, theirs = (Predictor.open(folder / out).predict(rows(1)) for out in ("run", "simulated"))
    pd.testing.assert_frame_equal(ours, theirs, rtol=1e-9)


def tells(message: Message) -> bool:
    """Whether a reply has sums of columns."""
    return set(decode(message.content)) == {"sums", "nonce"}


class Killed(Exception):
    pass


def test_a_server_that_dies_and_nodes_that_come_back_go_on_with_what_was_agreed(tmp_path: Path) -> None:
    folder = project(tmp_path, method="scaffold")
    expected = simulated(folder).summary["theta_sha256"]
    grid = nodes(folder)

    def dies(message: Message, number: int) -> Message:
        if number == 4:  # after the two exchanges and a round
            raise Killed
        return message

    grid.nodes[102].spoil = dies
    with pytest.raises(Killed):
        deployed(folder, grid)
    asked = [set(), set(), set()]
    for number, (node, seen) in enumerate(zip(grid.nodes.values(), asked, strict=True)):
        node.node = None  # a new process, which has forgotten everything but its folder
        node.spoil = lambda message, _, seen=seen: seen.add(tells(message)) or message
        (tmp_path / f"{NAMES[number]}.csv").touch()
    assert deployed(folder, grid).summary["theta_sha256"] == expected
    assert asked == [{False}] * 3  # nobody was asked for sums again


def test_a_node_that_joins_late_reads_its_rows_as_the_others_agreed(tmp_path: Path) -> None:
    folder = project(tmp_path)
    grid = nodes(folder)
    grid.nodes[102].online = False

    def arrives(message: Message, number: int) -> Message:
        grid.nodes[102].online |= number == 3
        return message

    grid.nodes[100].spoil = arrives
    with pytest.warns(UserWarning, match=r"oslo.csv: categories that are in no list, read as none: ward \(\d+\)"):
        run = deployed(folder, grid, nodes=2)
    assert [row["accepted"] for row in run.history[1:]] == [2, 3, 3]
    agreed = json.loads((folder / "run" / "fleet.json").read_text())["agreed"]
    assert "of 2 clients" in agreed["notes"][-1]
    assert "ward 2" not in json.dumps(agreed["encoding"])


def spoilt(**changes: Any) -> Any:
    """The first reply with sums is changed."""

    def spoil(message: Message, number: int) -> Message:
        tree = decode(message.content)
        if not tells(message) or number > 1:
            return message
        for name, change in changes.items():
            tree["sums"]["x"][name] = change(tree["sums"]["x"][name])
        return make_message(message.metadata, content=encode(tree))

    return spoil


def sums(count: Any = (4.0, 4.0), **parts: Any) -> dict[str, Any]:
    """A reply of two columns, of which some parts may be others than they should be."""
    told = {"count": count, "total": (2.0, -2.0), **parts}
    return {"sums": {"x": {name: torch.tensor(value, dtype=torch.float64) for name, value in told.items()}}}


HOSTILE = {
    "count of 'x' is no number of values from 0 to 8": [
        sums((-1.0, 1.0)),
        sums((9.0, 1.0)),
        sums((0.5, 1.0)),
        sums((torch.nan, 1.0)),
        sums((torch.inf, 1.0)),
    ],
    "total of 'x' is not finite, or larger": [
        sums(total=(torch.nan, 1.0)),
        sums(total=(-torch.inf, 1.0)),
        sums(total=(1e300, 1.0)),
    ],
    "sums of 'x' are of values that are not there": [sums((0.0, 4.0))],
    "squares of 'x' is not finite": [sums(squares=(torch.nan, 1.0))],
    "squares of 'x' are smaller than any with such a sum": [sums(squares=(0.5, 1.0)), sums(squares=(-9.0, 1.0))],
    "mean of 'x' is not between": [
        sums(least=(3.0, -1.0), greatest=(2.0, 1.0)),
        sums(least=(0.6, -1.0), greatest=(2.0, 1.0)),
    ],
    "is float64 of shape [3]": [sums(total=(1.0, 2.0, 3.0))],
    "no reply to this question": [
        {"sums": 3},
        {"sums": {"x": {"count": 3}}},
        {"sums": {"x": {}}},
        {"sums": {}},
        {},
        {**sums(), "more": 1},
        {"sums": {**sums()["sums"], "y": {}}},
    ],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_sums_that_no_numbers_have_are_refused(what: str) -> None:
    assert summed(sums(squares=(2.0, 1.0)), ("count", "total", "squares"), {"x": 2}, 8)["x"].squares.shape == (1, 2)
    for tree in HOSTILE[what]:
        told = tree.get("sums", {})
        wanted = tuple(told["x"]) if isinstance(told, dict) and told.get("x") else ("count", "total")
        wanted = wanted if "total" in wanted else ("count", "total")
        with pytest.raises(MessageError, match=re.escape(what)):
            summed(tree, wanted, {"x": 2}, 8)


def test_a_node_whose_sums_are_refused_is_named_and_the_others_agree(tmp_path: Path) -> None:
    folder = project(tmp_path, model="linear")
    grid = nodes(folder)
    grid.nodes[101].spoil = spoilt(count=lambda value: -value)
    run = deployed(folder, grid)
    assert "of 2 clients; no answer that counts from lyon (the count of 'x' is no number" in run.notes[-1]
    assert [row["accepted"] for row in run.history[1:]] == [3, 3, 3]
    scale = Predictor.open(folder / "run").card.x_scale
    assert scale is not None
    ages = pd.concat([rows(0), rows(2)])["age"]
    assert scale.mean[0].item() == pytest.approx(ages.mean(), rel=0.05)


def test_a_run_without_enough_sums_ends_before_its_first_round(tmp_path: Path) -> None:
    folder = project(tmp_path)
    grid = nodes(folder)
    for node in grid.nodes.values():
        node.spoil = lambda message, number: None
    with pytest.raises(RunError, match=r"0 of 3 nodes told the sums .* graz: no reply within 0.1 seconds"):
        deployed(folder, grid, deadline=0.1, tries=1)
    assert not (folder / "run").exists()


def test_a_node_with_other_columns_is_named_before_any_round(tmp_path: Path) -> None:
    folder = project(tmp_path)
    rows(2).drop(columns="salt").to_csv(tmp_path / "oslo.csv", index=False)
    with pytest.raises(
        RunError, match=r"2 of 3 nodes came .* file of 'oslo' has no column 'salt', which .* 'graz' has"
    ):
        deployed(folder, nodes(folder), wait=0.2)
    run = deployed(folder, nodes(folder), nodes=2)
    assert run.summary["per_client"]["clients"] == [0, 1]


def test_a_fleet_of_which_no_node_can_take_part_says_why_at_once(tmp_path: Path) -> None:
    folder = project(tmp_path, label="verdict")
    with pytest.raises(
        RunError, match=r"no node can take part: node 100: .*no column 'verdict'.*; node 101: .*; node 102"
    ):
        deployed(folder, nodes(folder), wait=600.0)


def test_nodes_that_scale_by_their_own_rows_tell_nothing_and_the_server_cannot_read_rows(tmp_path: Path) -> None:
    data = 'scaling_by = "client"\nfeature_columns = ["age", "pressure", "ward"]'
    folder = project(tmp_path, data=data)
    text = (folder / "experiment.toml").read_text()
    (folder / "experiment.toml").write_text(text.replace('drop = ["id", "cost"]\n', ""))
    grid = nodes(folder)
    told = set[bool]()
    grid.nodes[100].spoil = lambda message, _: told.add(tells(message)) or message
    run, expected = deployed(folder, grid), simulated(folder)
    assert told == {False}
    assert run.summary["theta_sha256"] == expected.summary["theta_sha256"]
    with pytest.raises(ConfigError, match="each client's rows were scaled by its own"):
        Predictor.open(folder / "run")
    with pytest.raises(ConfigError, match="the scale of 'lyon' stayed on its device"):
        Predictor.open(folder / "run", "lyon")


def test_a_feature_that_a_node_never_has_cannot_be_scaled_by_its_own_rows(tmp_path: Path) -> None:
    folder = project(tmp_path, data='scaling_by = "client"')
    run = deployed(folder, nodes(folder))
    assert "column 'salt' has no value in the training rows of this node" in run.history[1]["failures"][0]
    assert [row["accepted"] for row in run.history[1:]] == [2, 2, 2]


def test_a_module_that_loads_rows_has_them_scaled_as_the_experiment_says(tmp_path: Path) -> None:
    folder = project(tmp_path)
    settings = folder / "experiment.toml"
    text = settings.read_text()
    start, end = text.index("label_column"), text.index("[model]")
    settings.write_text(text[:start] + 'scaling = "standard"\n' + text[end:])
    (folder / "data.py").write_text(
        "import pandas\nfrom fedloom.data import from_arrays\n"
        "def load(config):\n    rows = pandas.read_csv(config['rows'])\n"
        "    x, y = rows[['age', 'pressure']], rows['outcome']\n"
        "    return from_arrays(x.fillna(100), y, task='binary', classes=['died', 'lived']), config['name']\n"
    )
    deployed(folder, nodes(folder))
    whole = pd.concat([rows(k) for k in range(3)])
    scale = Predictor.open(folder / "run").card.x_scale
    assert scale is not None
    assert scale.mean.tolist() == pytest.approx(whole[["age", "pressure"]].fillna(100).mean().tolist(), rel=0.05)
    settings.write_text(settings.read_text().replace("[data]\n", '[data]\nlabel_column = "outcome"\n'))
    with pytest.raises(RunError, match=r"data.label_column says how a node reads a file, but data.py loads the rows"):
        deployed(folder, nodes(folder), "other", wait=1.0)
