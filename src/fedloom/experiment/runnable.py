"""What settings, or Python objects, make: one run or several in sequence, begun in a folder or gone on with."""

from __future__ import annotations

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedloom.engine.run import Progress, Run
from fedloom.errors import RunError
from fedloom.experiment.essence import alike
from fedloom.storage import toml
from fedloom.storage.folder import CONFIG, SUMMARY
from fedloom.trust import doubting


class Runnable(ABC):
    """One run, or tasks in sequence: checked once, and begun or gone on with in a folder."""

    @abstractmethod
    def check(self) -> None:
        """Refuse what cannot be; what was checked is not again."""

    @abstractmethod
    def resolved(self) -> dict[str, Any]:
        """Every setting, with nothing left open."""

    def run(
        self,
        out: str | Path | None = None,
        *,
        force: bool = False,
        resume: bool = False,
        force_settings: bool = False,
        progress: Progress | None = None,
        label: str | None = None,
        group: str | None = None,
        done: Iterable[Path] = (),
    ) -> Run:
        """Run it, after it was checked as a whole.

        * ``out``: the folder of the run; none: nothing is written.
        * ``force``: replace what is in the folder. ``resume``: go on from where the run in the folder stopped.
        * ``force_settings``: go on also where settings, data or files were changed since, and write that down.
        * ``progress``: called after every round with its row of the history and the number of rounds.
        * ``label``: what the run is called in reports; none: its name in the settings, or its method's.
        * ``group``: what trackers are told that the run is a part of, such as a comparison.
        * ``done``: for tasks in sequence, folders of tasks of other sequences: one with the very settings of a task,
          and the same model before it, is copied instead of learning that task again.

        The result is a Run: the model, the server's state, the history and a summary.

            run = Experiment.load(None, {"data.name": "digits", "rounds": 5}).run("runs/short")
            run.frame()["accuracy"]
        """
        how = {"force": force, "resume": resume, "force_settings": force_settings, "progress": progress}
        return self._perform(label, done, out=out, group=group, **how)

    def start(self, place: Path, force: bool = False) -> dict[str, Any] | None:
        """How ``run`` is to begin in a folder: afresh, or on from where it stopped; None when it is done there.

        A folder that holds a run with other settings is refused, unless ``force`` says to replace it.
        """
        if force or not (place / CONFIG).is_file():
            return {"force": force}
        mine = tomllib.loads(toml.dumps(self.resolved()))
        with doubting(place, "it is not what you ask for", [mine]):
            same = any(alike(there, mine) for there in self._settings_in(place))
        if not same:
            raise RunError(
                f"{place} holds a run with other settings: choose another folder with --out, or begin anew with --force"
            )
        return None if (place / SUMMARY).is_file() else {"resume": True}

    @abstractmethod
    def _settings_in(self, place: Path) -> Iterator[dict[str, Any]]:
        """The settings of a folder's run: as they are written there, then with what this version of fedloom adds."""

    @abstractmethod
    def _perform(self, label: str | None, done: Iterable[Path], **how: Any) -> Run:
        """Run it; ``how`` are the arguments of ``Prepared.run``."""
