"""A run that waits: it goes as far as it is told, and on from there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedloom.engine.prepared import Prepared, engine_for, run_folder
from fedloom.engine.sealing import seal_of
from fedloom.engine.summary import summary_of
from fedloom.engine.walk import Walk
from fedloom.execution import Serial, one_thread
from fedloom.storage.folder import HISTORY, theta_sha256
from fedloom.storage.history import History, Row
from fedloom.storage.store import MemoryStore


class Course:
    """A run in memory that goes as far as it is told, and waits there: it goes on in the same bits, if it ever does.

    So many of them can wait beside each other; nothing is written, and the work is done in this process.
    """

    def __init__(self, run: Prepared) -> None:
        with one_thread():
            engine = (run.engine or engine_for)(run.setting, Serial(), MemoryStore())
            self._walk = Walk(run, engine, History(), None, None, None)
            self._begun = False

    def to(self, rounds: int) -> Row:
        """Go on until so many rounds are done, or until the run is over; the last row of its history."""
        walk = self._walk
        walk.run = replace(walk.run, rounds=rounds)
        with one_thread():
            if not self._begun:
                walk.start(None, [])
                self._begun = True
            walk.go()
        return walk.history.rows[-1]

    @property
    def stopped(self) -> str | None:
        """What ended the run: "rounds" where it could go on."""
        return self._walk.stopped

    @property
    def best(self) -> float | None:
        """The best value so far of the metric that patience watches, where it does."""
        return None if self._walk.best is None else self._walk.best.value

    @property
    def theta_sha256(self) -> str:
        """The fingerprint of the server's model."""
        return theta_sha256(self._walk.engine.theta())

    def keep(self, out: str | Path, config: dict[str, Any], label: str) -> dict[str, Any]:
        """Write the run into a folder, with all of its evaluations of the model as it is now; its summary.

        It ends here: who wants to go on does so from the folder.
        """
        walk, engine, rows = self._walk, self._walk.engine, list(self._walk.history.rows)
        walk.run = replace(walk.run, blind=False, config=config, label=label)
        folder = run_folder(out, False, False, config)
        assert folder is not None
        with folder, one_thread(), MemoryStore(folder.path) as store:
            for client in engine.store.clients().tolist():
                store.put(client, engine.store.get(client) or {})
            walk.seal = seal_of(engine.setting)
            with History(folder.path / HISTORY, walk.seal.run) as history:
                for row in rows[:-1]:
                    history.append(row)
                walk.history, walk.folder, engine.store = history, folder, store
                walk.introduce()
                walk._record(rows[-1])
                walk._save()
                walk.settle()
                return summary_of(walk)
