"""A checkpoint, a history and a summary belong to one run: nothing that was changed since is taken without a word."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedloom
from fedloom.cli import app
from fedloom.engine.run import Interrupted
from fedloom.errors import RunError
from fedloom.experiment import Experiment
from fedloom.storage.belonging import misfits
from fedloom.storage.history import History

ROUNDS = 6
BEGUN = {
    "data.name": "digits",
    "data.clients": 6,
    "model.name": "mlp",
    "model.hidden": [8],
    "method.name": "scaffold",
    "rounds": ROUNDS,
    "execution.executor": "serial",
    "execution.checkpoint_every": 2,
}


def stopped(place: Path, **changes: object) -> Path:
    """A run that was stopped after its third round, its last checkpoint being that of the second."""

    def progress(row: dict[str, object], rounds: int) -> None:
        if row["round"] == 3:
            raise Interrupted(None, 3)

    with pytest.raises(Interrupted):
        Experiment.load(None, BEGUN | changes).run(place, progress=progress)
    return place


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped(tmp_path_factory.mktemp("begun") / "run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole") / "run"
    Experiment.load(None, BEGUN).run(place)
    return place


@pytest.fixture
def run(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "run"))


def say(*words: object) -> tuple[int, str]:
    found = CliRunner().invoke(app, [str(word) for word in words])
    return found.exit_code, " ".join(found.output.split())


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


CHANGES = {
    "lr": ("lr = 0.1", "lr = 0.2", "settings: method.lr was 0.1 and is 0.2"),
    "method": ('option = "II"', 'option = "I"', "settings: method.option was II and is I"),
    "clients": ("clients = 6", "clients = 5", "data: clients was 6 and is 5"),
    "activation": ('activation = "relu"', 'activation = "tanh"', "model: module is not what it was"),
    "fleet": ("\nloss = 0.0", "\nloss = 0.3", "settings: fleet.loss was 0 and is 0.3"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_does_not_go_on_with_other_settings(run: Path, name: str) -> None:
    old, new, said = CHANGES[name]
    edit(run / "config.toml", old, new)
    before = (run / "history.jsonl").read_bytes()
    code, text = say("resume", run, "--quiet")
    assert code == 2
    assert said in text
    assert "--force-settings" in text
    assert (run / "history.jsonl").read_bytes() == before
    assert not (run / "summary.json").exists()


def test_another_seed_is_other_data_and_another_draw(run: Path) -> None:
    edit(run / "config.toml", "seed = 0", "seed = 1")
    code, text = say("resume", run, "--quiet")
    assert code == 2
    assert "settings: seed was 0 and is 1" in text
    assert "data: values is not what it was" in text


def test_settings_that_were_emptied_are_other_settings(run: Path) -> None:
    (run / "config.toml").write_text("")
    code, text = say("resume", run, "--quiet")
    assert code == 2
    assert "method was scaffold and is fedavg" in text or "Use the same model" in text


def test_a_model_of_another_shape_is_refused_even_by_force(run: Path) -> None:
    edit(run / "config.toml", "8,\n", "9,\n")
    for force in ((), ("--force-settings",)):
        code, text = say("resume", run, "--quiet", *force)
        assert code == 2
        assert "1.weight is (8, 64) there and (9, 64) here" in text


def test_what_a_user_may_change_he_may(run: Path, whole: Path) -> None:
    edit(run / "config.toml", "rounds = 6", "rounds = 7")
    edit(run / "config.toml", "checkpoint_every = 2", "checkpoint_every = 1")
    edit(run / "config.toml", "every = 1", "every = 7")
    code, _ = say("resume", run, "--quiet", "--executor", "processes", "--workers", "1")
    assert code == 0
    assert [row["round"] for row in History.read(run / "history.jsonl").rows] == list(range(8))
    assert misfits(run) == []


def test_what_is_forced_is_written_down(run: Path) -> None:
    edit(run / "config.toml", "lr = 0.1", "lr = 0.2")
    code, text = say("resume", run, "--force-settings", "--no-report")
    assert code == 0
    said = "method.lr was 0.1 and is 0.2"
    assert f"went on with what was changed after round 2: settings: {said}" in text
    summary = json.loads((run / "summary.json").read_text())
    assert summary["forced"] == [{"round": 2, "changes": [f"settings: {said}"]}]
    assert misfits(run) == []
    assert say("resume", run, "--quiet", "--no-report")[0] == 0  # it is the run's own setting now


def test_a_run_that_was_not_touched_ends_in_the_same_bits(run: Path, whole: Path) -> None:
    assert say("resume", run, "--quiet", "--no-report")[0] == 0
    ends = [json.loads((place / "summary.json").read_text()) for place in (run, whole)]
    assert ends[0]["theta_sha256"] == ends[1]["theta_sha256"]
    assert ends[0]["run"] != ends[1]["run"]
    assert misfits(run) == misfits(whole) == []


def test_a_table_that_lost_a_row_is_other_data(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    lines = ["a,b,client,label", *(f"{i % 7},{i % 5},{i % 3},{i % 2}" for i in range(90))]
    table.write_text("\n".join(lines))
    how = {"data.client_column": "client", "data.label_column": "label", "model.name": "linear"}
    given = {key: value for key, value in BEGUN.items() if not key.startswith(("data.", "model."))} | how
    place = tmp_path / "run"

    def progress(row: dict[str, object], rounds: int) -> None:
        if row["round"] == 3:
            raise Interrupted(None, 3)

    with pytest.raises(Interrupted):
        Experiment.load(None, given | {"data.path": str(table)}).run(place, progress=progress)
    table.write_text("\n".join(lines[:-1]))
    code, text = say("resume", place, "--quiet")
    assert code == 2
    assert "train rows was" in text
    assert "values is not what it was" in text


def test_a_checkpoint_of_another_run_is_not_taken(run: Path, tmp_path: Path) -> None:
    other = stopped(tmp_path / "other", **{"method.lr": 0.3})
    shutil.copy(other / "checkpoint.safetensors", run / "checkpoint.safetensors")
    shutil.rmtree(run / "memory")
    shutil.copytree(other / "memory", run / "memory")
    code, text = say("resume", run, "--quiet")
    assert code == 2
    assert "method.lr was 0.3 and is 0.1" in text
    assert "history.jsonl, line 1 does not follow" in text


def test_the_history_of_another_run_is_not_taken(run: Path, tmp_path: Path) -> None:
    other = stopped(tmp_path / "other")
    shutil.copy(other / "history.jsonl", run / "history.jsonl")
    code, text = say("resume", run, "--quiet")
    assert code == 2
    assert "history.jsonl, line 1 does not follow from what is before it" in text


def test_a_row_of_the_history_that_was_changed_is_noticed(run: Path) -> None:
    lines = (run / "history.jsonl").read_text().splitlines()
    row = json.loads(lines[1])
    row["bytes_up"] += 1
    lines[1] = json.dumps(row)
    (run / "history.jsonl").write_text("\n".join(lines) + "\n")
    code, text = say("resume", run, "--quiet")
    assert code == 2
    assert "history.jsonl, line 2 does not follow" in text


Damage = Callable[[Path], None]
LOOKED_AT: dict[str, tuple[Damage, str]] = {
    "summary": (
        lambda run: edit(run / "summary.json", '"bytes_up": ', '"bytes_up": 1'),
        "summary.json was changed after it was written",
    ),
    "history": (
        lambda run: edit(run / "history.jsonl", '"selected": 6', '"selected": 5'),
        "history.jsonl, line 2 does not follow",
    ),
    "links": (
        lambda run: (
            (run / "history.jsonl").write_text(
                "".join(
                    json.dumps(
                        {key: value for key, value in json.loads(line).items() if key != "chain"} | {"bytes_up": 1}
                    )
                    + "\n"
                    for line in (run / "history.jsonl").read_text().splitlines()
                )
            )
            and None
        ),
        "does not have the rows that it had",
    ),
    "config": (
        lambda run: edit(run / "config.toml", "lr = 0.1", "lr = 0.2"),
        "config.toml is not as it was when checkpoint.safetensors was written",
    ),
    "data": (lambda run: edit(run / "data.json", "{", "{ "), "data.json is not as it was"),
    "hash": (lambda run: edit(run / "summary.json", '"sha256"', '"sha257"'), "summary.json has lost its hash"),
    "checkpoint": (
        lambda run: (run / "checkpoint.safetensors").write_bytes(b"\0" * 64) and None,
        "checkpoint.safetensors cannot be read, so it is not known whether the other files belong to the run",
    ),
    "no checkpoint": (
        lambda run: [path.unlink() for path in run.glob("checkpoint*")] and None,
        "checkpoint.safetensors cannot be read",
    ),
}


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_report_says_what_was_changed(whole: Path, tmp_path: Path, name: str) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    damage, said = LOOKED_AT[name]
    damage(run)
    code, text = say("report", run)
    assert code == 0
    assert said in text
    assert said in (run / "report.html").read_text()


def test_a_report_says_that_a_row_was_cut_off(begun: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(begun, tmp_path / "run"))
    text = (run / "history.jsonl").read_text()
    (run / "history.jsonl").write_text(text[:-40])
    code, said = say("report", run)
    assert code == 0
    assert "line 4, the last, was cut off and is dropped" in said.replace("\n", " ")


def test_a_summary_of_another_run_is_noticed(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    Experiment.load(None, BEGUN | {"method.lr": 0.3}).run(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "summary.json", run / "summary.json")
    assert misfits(run) == ["summary.json is of another run than checkpoint.safetensors"]


def test_a_run_that_went_on_after_its_summary_says_so(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    edit(run / "config.toml", f"rounds = {ROUNDS}", "rounds = 20")

    def progress(row: dict[str, object], rounds: int) -> None:
        if row["round"] == ROUNDS + 3:
            raise Interrupted(None, ROUNDS + 3)

    with pytest.raises(Interrupted):
        Experiment.load(run / "config.toml").run(run, resume=True, progress=progress)
    assert misfits(run) == [
        f"summary.json tells of the run after round {ROUNDS}, checkpoint.safetensors is of round {ROUNDS + 2}"
    ]


def damaged(run: Path) -> Path:
    (run / "checkpoint.safetensors").write_bytes((run / "checkpoint.safetensors").read_bytes()[:-7])
    return run


STAND_IN = "checkpoint.previous.safetensors, which is older, is taken in its place"


def test_an_older_checkpoint_is_no_silent_stand_in_for_an_adaptation(whole: Path, tmp_path: Path) -> None:
    run = damaged(Path(shutil.copytree(whole, tmp_path / "run")))
    code, text = say("adapt", run, "--client", 1, "--steps", 1)
    assert code == 0
    assert STAND_IN in text
    record = json.loads((tmp_path / "run-client-1" / "adapted.json").read_text())
    assert STAND_IN in record["notes"][0]


def test_an_older_checkpoint_in_the_newest_ones_place_is_noticed_and_goes_on_to_the_same_bits(
    run: Path, whole: Path
) -> None:
    assert misfits(run) == []
    shutil.copy(run / "checkpoint.previous.safetensors", run / "checkpoint.safetensors")
    said = "checkpoint.safetensors is of round 0, checkpoint.previous.safetensors of round 0: an older one is in the"
    adapted = fedloom.adapt(run, 1, steps=1)
    assert said in adapted.record["notes"][0]
    assert say("resume", run, "--quiet", "--no-report")[0] == 0
    ends = [json.loads((place / "summary.json").read_text()) for place in (run, whole)]
    assert ends[0]["theta_sha256"] == ends[1]["theta_sha256"]


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_without_the_previous_checkpoint_it_is_not_known_which_is_the_newest(
    run: Path, whole: Path, damage: Callable[[Path], object]
) -> None:
    for place in (run, Path(shutil.copytree(whole, run.parent / "whole"))):
        damage(place / "checkpoint.previous.safetensors")
    assert misfits(run.parent / "whole") == []  # its summary tells
    (said,) = misfits(run)
    assert said.startswith("checkpoint.previous.safetensors is missing or damaged")


def test_an_adaptation_says_what_the_model_was_not_trained_with(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    edit(run / "config.toml", "clients = 6", "clients = 5")
    code, text = say("adapt", run, "--client", 1, "--steps", 1)
    assert code == 0
    assert "since the run, data: clients was 6 and is 5" in text


def test_an_older_checkpoint_is_no_silent_stand_in_for_a_prior(whole: Path, tmp_path: Path) -> None:
    run = damaged(Path(shutil.copytree(whole, tmp_path / "run")))
    later = Experiment.load(None, BEGUN | {"prior.run": str(run)}).run()
    assert STAND_IN in later.notes[0]
    with pytest.warns(UserWarning, match="is taken in its place"):
        fedloom.saved_model(run)


def test_python_is_refused_and_can_insist_as_well(tmp_path: Path) -> None:
    data = fedloom.federate("digits", clients=4)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    fedloom.train(problem, fedloom.FedAvg(), rounds=2, out=tmp_path / "run")
    again = {"rounds": 3, "out": tmp_path / "run", "resume": True}
    with pytest.raises(RunError, match=r"method\.lr was 0\.1 and is 0\.3.*force_settings=True"):
        fedloom.train(problem, fedloom.FedAvg(lr=0.3), **again)
    run = fedloom.train(problem, fedloom.FedAvg(lr=0.3), **again, force_settings=True)
    assert run.summary["forced"][0]["round"] == 2
    assert "went on with what was changed" in run.notes[0]


def test_a_run_of_an_older_fedloom_goes_on_with_a_note(run: Path) -> None:
    from fedloom.storage import checkpoint

    found = checkpoint.load(run / "checkpoint.safetensors")
    old = {key: value for key, value in found.meta.items() if key not in ("seal", "history", "files", "theta_sha256")}
    checkpoint.save(run / "checkpoint.safetensors", found.groups, old)
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    bare = [{key: value for key, value in line.items() if key != "chain"} for line in lines]
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in bare))
    code, text = say("resume", run, "--no-report")
    assert code == 0
    assert "did not write down what a run belongs to" in text
    assert misfits(run) == []
