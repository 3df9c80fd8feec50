"""The project that `fedloom deploy init` writes: complete, and with nothing in the bundle that is a secret."""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from typer.testing import CliRunner

from fedloom.cli import app
from fedloom.data import from_arrays
from fedloom.deploy.codec import bundle, decode, encode
from fedloom.deploy.node import Node
from fedloom.deploy.rows import alone
from fedloom.experiment import Experiment


def made(folder: Path, *more: str) -> Path:
    words = ["deploy", "init", str(folder), "--name", "lyon", "--name", "oslo", "--host", "fl.example"]
    done = CliRunner().invoke(app, [*words, *more])
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return made(tmp_path / "fleet")


@pytest.fixture
def coded(tmp_path: Path) -> Path:
    """A project whose nodes load their rows by Python."""
    return made(tmp_path / "coded", "--module")


def test_flower_takes_the_project_and_bundles_no_secret(project: Path, coded: Path) -> None:
    for folder, module in ((project, set()), (coded, {"data.py"})):
        load_and_validate(folder / "pyproject.toml")
        with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(folder))) as bundle_:
            names = set(bundle_.namelist())
        assert names == {".info/CONTENT", "pyproject.toml", "fleet_app.py", "experiment.toml", *module}


def test_a_node_reads_the_file_that_it_was_started_with_and_tells_what_is_in_its_columns(
    project: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("a,b,label\n" + "\n".join(f"{i / 7},{'uv'[i % 2]},{i % 3}" for i in range(120)))
    told = card(project, name="lyon", rows=str(rows))["told"]
    assert (told["name"], told["labels"], told["whole"]) == ("lyon", ["0", "1", "2"], True)
    a, b = told["features"]["columns"]
    assert (a["numbers"], a["figures"], b["words"]) == (120, None, {"u": 60, "v": 60})
    assert "start it with node.sh NAME ROWS" in str(card(project, name="lyon")["error"])
    assert "is not there" in str(card(project, name="lyon", rows=str(tmp_path / "none.csv"))["error"])


def test_the_experiment_of_a_project_is_not_run_without_rows(project: Path, tmp_path: Path) -> None:
    words = ["run", str(project / "experiment.toml"), "--rounds", "1", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "whose nodes have the rows" in " ".join(done.output.split())
    for name in ("lyon", "oslo"):
        (tmp_path / f"{name}.csv").write_text("a,label\n" + "\n".join(f"{i},{i % 2}" for i in range(20)))
        words += ["--data", str(tmp_path / f"{name}.csv")]
    assert CliRunner().invoke(app, words).exit_code == 0


def test_every_node_has_a_key_and_the_certificate_names_the_server(project: Path) -> None:
    from cryptography import x509

    assert sorted(path.name for path in (project / "nodes").iterdir()) == ["lyon", "lyon.pub", "oslo", "oslo.pub"]
    server = x509.load_pem_x509_certificate((project / "certificates" / "server.pem").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example", "localhost"]
    authority = x509.load_pem_x509_certificate((project / "certificates" / "ca.crt").read_bytes())
    server.verify_directly_issued_by(authority)


def test_the_scripts_are_sound_shell(project: Path) -> None:
    for script in ("server.sh", "run.sh", "node.sh", "environment.sh"):
        subprocess.run(["sh", "-n", str(project / script)], check=True)
    assert os.access(project / "node.sh", os.X_OK)


def test_nothing_of_a_project_is_open_to_other_users(project: Path) -> None:
    modes = {path: path.stat().st_mode & 0o777 for path in (project, *project.rglob("*"))}
    scripts = {project / name for name in ("server.sh", "run.sh", "node.sh")}
    assert {mode for path, mode in modes.items() if path.is_dir() or path in scripts} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file() and path not in scripts} == {0o600}


def test_a_folder_with_something_in_it_is_left_alone(project: Path) -> None:
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    done = CliRunner().invoke(app, ["deploy", "init", str(project)])
    assert done.exit_code == 2
    assert "nothing was changed" in done.output
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before


def card(folder: Path, **config: object) -> dict[str, object]:
    hello = bundle(own=encode({"function": "hello"}))
    return decode(Node(folder, config, RecordDict()).answer(hello))


def test_a_node_says_what_its_data_module_loads_and_shows_no_row(coded: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("a,b,label\n" + "\n".join(f"{i},{-i},{i % 2}" for i in range(10)))
    found = card(coded, name="lyon", rows=str(rows))["card"]
    assert found["name"] == "lyon"
    assert found["sizes"] == {"train": 8, "test": 2, "support": 4, "query": 4, "test-support": 1, "test-query": 1}
    assert (found["shape"], found["classes"], found["task"]) == ([2], ["0", "1"], "classification")
    settings = coded / "experiment.toml"
    settings.write_text(settings.read_text().replace("[data]\n", "[data]\nvalidation = 0.25\n"))
    held = card(coded, name="lyon", rows=str(rows))["card"]["sizes"]
    assert (held["train"], held["validation"], held["test"]) == (6, 2, 2)


@pytest.mark.parametrize(
    ("module", "what"),
    [
        ("x = 1", "has no function load"),
        ("def load(config):\n    return 1", "must return a table"),
        (
            "from fedloom.data import from_arrays\ndef load(_):\n    return from_arrays([[1.0]] * 8, [0, 1] * 4), ''",
            "a text that never changes",
        ),
    ],
)
def test_a_data_module_that_is_none_is_named(coded: Path, module: str, what: str) -> None:
    (coded / "data.py").write_text(module)
    assert what in str(card(coded)["error"])


def test_a_client_alone_has_its_rows_at_its_own_number() -> None:
    data = Experiment.load(overrides={"data.clients": 4, "data.partition": "dirichlet", "data.alpha": 0.3}).data()
    own = alone(data, 2, 5)
    assert own.clients == 6
    for name, split in data.splits.items():
        assert own.splits[name].sizes.tolist() == [0, 0, 0, 0, 0, int(split.sizes[2])]
        assert torch.equal(own.x[own.splits[name][5]], data.x[split[2]])
        assert torch.equal(own.y[own.splits[name][5]], data.y[split[2]])
    assert len(own.x) == int(data.splits["train"].sizes[2] + data.splits["test"].sizes[2])
    assert own.label(5) == data.label(2)


def test_a_table_of_several_clients_is_one_client_on_a_node(coded: Path) -> None:
    table = from_arrays(np.eye(12), [0, 1] * 6, clients=["a", "b"] * 6)
    assert table.groups is not None
    (coded / "data.py").write_text(
        "import numpy\nfrom fedloom.data import from_arrays\n"
        "def load(config):\n    return from_arrays(numpy.eye(12), [0, 1] * 6, clients=['a', 'b'] * 6), 'one'"
    )
    found = card(coded)["card"]
    assert found["sizes"]["train"] + found["sizes"]["test"] == 12
