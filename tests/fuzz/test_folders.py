"""Any damage to a run's folder: an error in words, the same result, or one with a note. Never another in silence."""

from __future__ import annotations

import hashlib
import json
import shutil
import tomllib
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from harness import Silent, altered, bounded, flipped, fuzz, little_memory
from torch import Tensor

import fedloom
from fedloom.engine.run import Interrupted
from fedloom.experiment import Experiment, load_experiment
from fedloom.prediction.export import export
from fedloom.prediction.rows import Tally
from fedloom.report import find_runs, write_report
from fedloom.storage import checkpoint, toml

BEGUN = {
    "data": {"name": "synthetic", "clients": 4, "rows": 12, "features": 3, "classes": 3},
    "model": {"name": "linear"},
    "method": {"name": "scaffold", "lr": 0.05},
    "rounds": 4,
    "execution": {"executor": "serial", "checkpoint_every": 1},
}
IN_FLIGHT = {"schedule": {"name": "async", "concurrency": 3}, "fleet": {"speed": "uniform:50:500"}}
CLOCK = "wall_seconds"


class Runs:
    """A run that ended and the same one stopped, and what comes of them when nothing is damaged."""

    def __init__(self, place: Path) -> None:
        self.finished, self.stopped, self.other = place / "finished", place / "stopped", place / "other"
        self.waiting = place / "waiting"

        def progress(row: dict[str, Any], rounds: int) -> None:
            if row["round"] == 3:
                raise Interrupted(None, 3)

        Experiment.load(None, BEGUN).run(self.finished)
        Experiment.load(None, {**BEGUN, "seed": 1}).run(self.other)
        with pytest.raises(Interrupted):
            Experiment.load(None, BEGUN).run(self.stopped, progress=progress)
        with pytest.raises(Interrupted):
            Experiment.load(None, BEGUN | IN_FLIGHT).run(self.waiting, progress=progress)

    @cache  # noqa: B019
    def expected(self, which: str, did: str) -> Any:
        """What a command gives for a folder that is whole."""
        copy = self.finished.parent / "whole"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(getattr(self, which), copy)
        return COMMANDS[did](copy)[0]


def timeless(value: Any) -> Any:
    """Without what the wall clock says, and without the name of a run, which is drawn anew for each."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in (CLOCK, "folder", "run", "sha256", "checkpoint")}
    return list(map(timeless, value)) if isinstance(value, list | tuple) else value


def resumed(folder: Path) -> tuple[Any, list[str]]:
    done = load_experiment(folder / "config.toml").run(folder, resume=True)
    return (done.summary["theta_sha256"], timeless(json.loads(json.dumps(list(done.history))))), done.notes


def reported(folder: Path) -> tuple[Any, list[str]]:
    write_report(folder, folder / "report.html")
    (run,) = find_runs(folder)
    seen = timeless([run.config, run.data, list(run.history), run.summary])
    unfinished = ["not finished"] if run.rounds == run.planned_rounds and not run.finished else []  # the page says so
    return json.loads(json.dumps(seen)), [*run.misfits, *unfinished]


def adapted(folder: Path) -> tuple[Any, list[str]]:
    done = fedloom.adapt(folder, 1, steps=1, lr=0.05)
    return (done.before, done.after), list(done.record.get("notes", ()))


ROWS = [[0.5, -1.0, 2.0], [float("nan"), 0.0, 1.0]]


def predicted(folder: Path) -> tuple[Any, list[str]]:
    predictor = fedloom.Predictor.open(folder)
    return predictor.answers(ROWS, tally=Tally())["prediction"].tolist(), list(predictor.notes)


def exported(folder: Path) -> tuple[Any, list[str]]:
    predictor = fedloom.Predictor.open(folder)
    out = folder.parent / "exported"
    export(predictor, out, "safetensors", force=True)
    return (out / "model.safetensors").read_bytes() + (out / "model.json").read_bytes(), list(predictor.notes)


COMMANDS: dict[str, Callable[[Path], tuple[Any, list[str]]]] = {
    "resume": resumed,
    "report": reported,
    "adapt": adapted,
    "predict": predicted,
    "export": exported,
}


def damage(folder: Path, runs: Runs, random: Random) -> str:
    """Does something to one of the files; which."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    path = random.choice(files)
    kind = random.randrange(6)
    if kind == 0:
        path.unlink()
    elif kind == 1:
        source = random.choice(sorted(p for p in random.choice([runs.other, folder]).rglob("*") if p.is_file()))
        path.write_bytes(source.read_bytes())
    elif kind == 2 and path.suffix in (".json", ".jsonl", ".toml"):
        try:
            structure(path, random)
        except (ValueError, TypeError, AttributeError, fedloom.errors.FedloomError):
            path.write_bytes(b"")
    else:
        path.write_bytes(flipped(path.read_bytes(), random))
    return path.name


def structure(path: Path, random: Random) -> None:
    text = path.read_text()
    if path.suffix == ".toml":
        table = tomllib.loads(text)
        altered(table, random)
        path.write_text(toml.dumps(table))
        return
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    at = random.randrange(len(lines))
    value = json.loads(lines[at])
    altered(value, random)
    lines[at] = json.dumps(value)
    path.write_text("\n".join(lines) + "\n")


def attempt(runs: Runs, random: Random) -> str:
    which, did = random.choice(
        [("stopped", "resume"), ("stopped", "adapt"), ("stopped", "report")] * 2 + [("finished", d) for d in COMMANDS]
    )
    folder = runs.finished.parent / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(getattr(runs, which), folder)
    names = {damage(folder, runs, random) for _ in range(random.choice([1, 1, 1, 2]))}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found, notes = COMMANDS[did](folder)
    if found == runs.expected(which, did):
        return f"{did}: the same"
    if notes or said:
        return f"{did}: another, and said"
    raise Silent(f"{did} of the {which} run gives another result without a word; damaged: {', '.join(sorted(names))}")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("folders"))


def test_no_damage_to_a_folder_gives_another_result_in_silence(runs: Runs) -> None:
    with little_memory():
        fuzz("run folders", 60, partial(attempt, runs))


def forge(folder: Path, random: Random) -> None:
    """Change what a checkpoint or a client's memory says, with a checksum that fits: whoever knows the format can."""
    path = random.choice([folder / checkpoint.NEWEST] * 3 + sorted((folder / "memory").iterdir()))
    if path.name == checkpoint.NEWEST and random.random() < 0.7:
        found = checkpoint.load(path)
        groups, meta = found.groups, found.meta
        if random.random() < 0.5:
            altered(meta, random)
        else:
            group = groups[random.choice([name for name in groups if groups[name]])]
            key = random.choice(list(group))
            group[key] = random.choice(FORGED)(group[key])
        with suppress(TypeError, ValueError, UnicodeEncodeError):  # what JSON cannot hold nobody can write
            checkpoint.save(path, groups, meta)
        return
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    described, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    texts = described["__metadata__"]
    key = random.choice([key for key in texts if key not in ("checksum", "kind", "version")])
    if random.random() < 0.5:
        value = {"it": json.loads(texts[key])}
        altered(value, random)
        texts[key] = random.choice([json.dumps(value.get("it")), "[" * 5000, '{"a": 1e999}', "9" * 6000])
    elif random.random() < 0.5:
        altered(described, random)
    else:
        body = flipped(body, random)
    head = json.dumps(described).encode()
    head += b" " * (-len(head) % 8)
    whole = len(head).to_bytes(8, "little") + head + body
    texts = described.get("__metadata__")
    told = str(texts.get("checksum") if isinstance(texts, dict) else "").encode()
    blank = whole.replace(told, b"0" * 64, 1) if len(told) == 64 else whole
    path.write_bytes(blank.replace(b"0" * 64, hashlib.sha256(blank).hexdigest().encode(), 1))


FORGED: list[Callable[[Tensor], Tensor]] = [
    lambda t: t.double() if t.dtype != torch.float64 else t.float(),
    lambda t: t.to(torch.int64),
    lambda t: torch.full_like(t, torch.nan) if t.is_floating_point() else torch.full_like(t, -1),
    lambda t: torch.full_like(t, 2**60) if not t.is_floating_point() else t * 1e30,
    lambda t: t.flatten()[:0],
    lambda t: torch.cat([t.flatten(), t.flatten()]),
    lambda t: t[None],
    lambda t: torch.zeros(()),
    lambda t: torch.zeros(3, dtype=torch.complex64),
]


def attempt_forged(runs: Runs, random: Random) -> str:
    which, did = random.choice(["stopped", "finished", "waiting"]), random.choice(list(COMMANDS))
    folder = runs.finished.parent / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(getattr(runs, which), folder)
    forge(folder, random)
    with bounded(60, f"{did} of a forged checkpoint"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        COMMANDS[did](folder)
    return f"{did}: done"


def test_a_forged_checkpoint_is_refused_in_words_or_taken(runs: Runs) -> None:
    with little_memory():
        fuzz("forged checkpoints", 40, partial(attempt_forged, runs))
