"""Code that a run's folder names is imported only if the user wrote the folder, or trusts who did."""

from __future__ import annotations

import shutil
import stat
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import fedloom
from fedloom.cli import app
from fedloom.errors import ConfigError, RunError, Untrusted
from fedloom.experiment import Experiment, Settings, load_experiment, make_experiment
from fedloom.storage.folder import CONFIG, RunFolder
from fedloom.storage.signature import SIGNATURE, key_file, reading, signature_of, stranger
from fedloom.trust import doubting

MODULE = """
from pathlib import Path
from torch import nn

Path("imported").touch()


def net(shape, outputs):
    return nn.Linear(shape[0], outputs)
"""
SMALL = ("--data", "diabetes", "--clients", "3", "--rounds", "2", "--checkpoint-every", "1", "--no-report")
Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A command in a working folder that has a model of its own; whoever imports it leaves the file ``imported``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    Path("strange.py").write_text(MODULE)
    runner = CliRunner()

    def run(*arguments: object, code: int = 0) -> Result:
        sys.modules.pop("strange", None)
        Path("imported").unlink(missing_ok=True)
        result = runner.invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return run


def imported() -> bool:
    return Path("imported").exists()


def stopped(folder: str) -> str:
    """The folder as a kill before the last round's summary would leave it."""
    (Path(folder) / "summary.json").unlink()
    return folder


@pytest.fixture
def strange(call: Call) -> Call:
    """Folder ``a``: a run with a module's model, written by somebody with another key."""
    call("run", *SMALL, "--model", "strange:net", "--out", "a")
    assert imported()
    stopped("a")
    shutil.rmtree("home")
    return call


def test_who_began_a_run_goes_on_with_it_wherever_the_folder_is_now(call: Call) -> None:
    call("run", *SMALL, "--model", "strange:net", "--out", "a")
    first = fedloom.saved_model("a").sha256
    shutil.copytree(stopped("a"), "b")
    Path("c").mkdir()
    shutil.move("a", "c/moved")
    for folder in ("b", "c/moved"):
        call("resume", folder, "--no-report")
        assert imported()
        assert fedloom.saved_model(folder).sha256 == first
        assert "client 0" in call("adapt", folder, "--client", 0, "--out", f"{folder}-0").output


def test_a_strangers_folder_imports_nothing_and_says_what_it_asks_for_and_what_to_do(strange: Call) -> None:
    for command in (("resume", "a"), ("adapt", "a", "--client", "0")):
        said = " ".join(strange(*command, code=2).output.split())
        assert not imported()
        assert "a asks to import the model 'strange:net'" in said
        assert "you have no key" in said
        assert "--trust" in said
        assert "trust=True" in said
        assert "fedloom report a" in said
    assert not Path("a-client-0").exists()
    with pytest.raises(Untrusted, match="'strange:net'"):
        fedloom.adapt("a", 0)
    assert not imported()


def test_a_user_may_trust_it(strange: Call) -> None:
    strange("adapt", "a", "--client", 0, "--trust")
    assert imported()
    assert fedloom.adapt("a", 0, trust=True).before["rmse"] > 0
    strange("resume", "a", "--trust", "--no-report")
    assert fedloom.saved_model("a").finished
    assert stranger(Path("a")) is not None  # trust is given each time: nothing is signed by it


def test_a_report_a_prior_and_a_comparison_import_nothing_of_a_folder(strange: Call) -> None:
    strange("report", "a")
    assert not imported()
    said = strange("run", *SMALL, "--prior", "a", "--out", "b", code=2).output
    assert "the model in a is another one" in " ".join(said.split())
    assert not imported()
    compare = ("compare", "fedavg", *SMALL, "--seeds", "1", "--out", "all")
    strange(*compare)
    shutil.copy("a/config.toml", stopped("all/fedavg/seed-1"))
    assert "holds a run with other settings" in " ".join(strange(*compare, code=2).output.split())
    assert not imported()


def test_what_the_user_names_himself_is_his_own(strange: Call) -> None:
    Path("mine.py").write_text("from fedloom.execution import Serial\n\n\nclass Here(Serial):\n    pass\n")
    strange("run", *SMALL, "--out", "b")
    Path("b", SIGNATURE).unlink(missing_ok=True)
    strange("resume", stopped("b"), "--executor", "mine:Here", "--no-report")
    wanted = {"data.name": "diabetes", "data.clients": 3, "rounds": 2, "model.name": "strange:net"}
    assert Experiment.load(None, wanted).start(Path("a")) == {"resume": True}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.name", "strange:few"),
        ("data.partition", "strange:Deal"),
        ("model.name", "strange:other"),
        ("model.loss", "strange:loss"),
        ("method.name", "strange:Method"),
        ("selection.name", "strange:First"),
        ("fleet.preset", "strange:fleet"),
        ("channel", [{"name": "strange:Twice"}]),
        ("evaluation.metrics", ["strange:Wrong"]),
        ("execution.executor", "strange:Executor"),
        ("task", [{"method": {"name": "strange:Method"}}]),
    ],
)
def test_nothing_that_can_be_named_by_its_path_is_imported(call: Call, key: str, value: object) -> None:
    with doubting(Path("a"), "it is another's"), pytest.raises(Untrusted, match="a asks to import"):
        make_experiment(Settings.read(None, {key: value}))
    assert not imported()
    with doubting(Path("a"), "it is another's", [value]), pytest.raises(ConfigError):
        make_experiment(Settings.read(None, {key: value}))


def test_a_module_of_python_itself_is_a_strangers_choice_too() -> None:
    settings = Settings.read(None, {"model.name": "subprocess:run", "model.check": True})
    make_experiment(settings)  # possible, and so not for a folder to say
    with doubting(Path("a"), "it is another's"), pytest.raises(Untrusted, match="import the model 'subprocess:run'"):
        make_experiment(settings)


def test_a_strangers_cluster_is_not_connected_to_for_it_could_send_code() -> None:
    settings = {"execution.executor": "ray", "execution.ray_address": "10.0.0.1:6379"}
    with doubting(Path("a"), "it is another's"), pytest.raises(Untrusted, match=r"Ray cluster at '10\.0\.0\.1:6379'"):
        load_experiment(None, settings)
    with doubting(Path("a"), "it is another's"):
        load_experiment(None, {**settings, "execution.ray_address": "local"})
    load_experiment(None, settings)


def test_settings_that_were_changed_or_signed_by_another_key_are_a_strangers(call: Call) -> None:
    config = 'method = "mine:Method"\n'
    with RunFolder.create("a") as folder:
        folder.describe({"method": "mine:Method"})
    assert stranger(Path("a")) is None
    assert Path("a", SIGNATURE).read_text().strip() == signature_of(config)
    Path("a", CONFIG).write_text(config.replace("mine", "thine"))
    assert "was changed" in str(stranger(Path("a")))
    Path("a", CONFIG).write_text(config)
    key_file().unlink()
    assert "no key" in str(stranger(Path("a")))
    assert signature_of(config) != Path("a", SIGNATURE).read_text().strip()
    assert "another key than yours" in str(stranger(Path("a")))
    Path("a", SIGNATURE).unlink()
    assert "not signed by you" in str(stranger(Path("a")))
    with reading(Path("a"), trust=True):
        load_experiment(None, {"execution.ray_address": "there:1", "execution.executor": "ray"})


def test_the_key_is_the_users_alone_and_one_for_all(call: Call) -> None:
    with ThreadPoolExecutor(8) as pool:
        signatures = set(pool.map(lambda _: signature_of("a:b"), range(32)))
    assert len(signatures) == 1
    assert None not in signatures
    assert [path.name for path in key_file().parent.iterdir()] == ["key"]
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600
    assert stat.S_IMODE(key_file().parent.stat().st_mode) == 0o700
    key_file().chmod(0o644)
    with pytest.warns(UserWarning, match="others may know the key"):
        assert signature_of("a:b") is None
    key_file().chmod(0o600)
    key_file().write_bytes(b"short")
    with pytest.warns(UserWarning, match="is no key of fedloom"):
        assert signature_of("a:b") is None


def test_a_run_that_names_no_code_needs_no_key_and_one_that_cannot_be_signed_is_told(call: Call) -> None:
    call("run", *SMALL, "--out", "a")
    assert not key_file().exists()
    assert not Path("a", SIGNATURE).exists()
    call("resume", stopped("a"), "--no-report")
    Path("home").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="could not be signed .* --trust"):
        call("run", *SMALL, "--model", "strange:net", "--out", "b")
    call("resume", stopped("b"), code=2)
    call("resume", "b", "--trust", "--no-report")


@pytest.mark.parametrize("left", [("config.toml.tmp",), ("config.sig",), ("config.sig", "config.toml.tmp"), ()])
def test_a_folder_that_a_kill_left_before_it_was_a_run_is_free(tmp_path: Path, left: tuple[str, ...]) -> None:
    RunFolder.create(tmp_path / "a").close()
    for name in left:
        (tmp_path / "a" / name).write_text("half")
    with RunFolder.create(tmp_path / "a") as folder:
        assert not [path.name for path in folder.path.iterdir() if path.name[0] != "."]
        folder.describe({"rounds": 1})
    with pytest.raises(RunError, match="already holds a run"):
        RunFolder.create(tmp_path / "a")
