"""All trackers of one run: told in turn, found again when it is resumed, and left out once they fail."""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedloom.storage.closing import Closing
from fedloom.storage.files import loads, plain, write_json
from fedloom.storage.folder import TRACKING
from fedloom.tracking.register import name_of
from fedloom.tracking.tracker import Row, TrackedRun, Tracker


class Tracking(Closing):
    """Tells trackers of one run. Nothing that goes wrong with one of them reaches the run.

    * ``told``: the last round that each knows of. It is written down when the run ends in order, or when a tracker
      fails; after a kill it is what the tracker itself says, or else the last row that was in the history then.
    """

    def __init__(
        self,
        trackers: Sequence[Tracker],
        label: str,
        config: Mapping[str, Any],
        folder: Path | None,
        group: str | None = None,
    ) -> None:
        self.trackers = {key_of(tracker): tracker for tracker in trackers}
        self.folder = folder
        record = {} if folder is None or not trackers else _read(folder / TRACKING)
        self._record = {key: record.get(key, {}) for key in [*record, *self.trackers]}
        self._runs = {
            key: TrackedRun(label, config, folder, group, dict(self._record[key].get("kept", {})))
            for key in self.trackers
        }
        self._told: dict[str, int] = {}

    def begin(self, rows: Callable[[], Iterable[Row]] = lambda: (), last: int = -1) -> None:
        """The run begins or goes on: its ``rows`` so far, and the ``last`` that was there when it stopped."""
        for key, tracker in list(self.trackers.items()):
            kept, noted = bool(self._runs[key].kept), self._record[key].get("told")
            known = self._try(key, partial(tracker.begin, self._runs[key]))
            if key not in self.trackers:
                continue
            if known is None:
                known = -1 if not kept else noted if isinstance(noted, int) else last
            self._told[key] = known
            self._record[key] = {"kept": self._runs[key].kept}
        self._write()
        behind = min(self._told.values(), default=last)
        if behind < last:
            for row in rows():
                self.row(row)

    def row(self, row: Row) -> None:
        """A round is done; who knows of it already is not told again."""
        for key, tracker in list(self.trackers.items()):
            if row["round"] <= self._told[key]:
                continue
            self._try(key, partial(tracker.row, row))
            self._told[key] = row["round"] if key in self.trackers else self._told[key]

    def further(self, row: Row) -> None:
        """More numbers of a round that trackers know of already."""
        for key, tracker in list(self.trackers.items()):
            self._try(key, partial(tracker.row, row))

    def end(self, summary: dict[str, Any]) -> None:
        """The run is done."""
        if not self.trackers:
            return
        with tempfile.TemporaryDirectory(prefix="fedloom-") as place:
            page = self._page(Path(place))
            self._end(plain(summary, "summary"), page)

    def close(self) -> None:
        """The run was stopped, unless it ended."""
        self._end(None, None)

    def _end(self, summary: dict[str, Any] | None, page: Path | None) -> None:
        for key, tracker in list(self.trackers.items()):
            self._try(key, partial(tracker.end, summary, page))
        self._note(list(self.trackers))
        self.trackers = {}

    def _page(self, place: Path) -> Path | None:
        """The report, which is for the trackers alone: whether the folder has one is for others to say."""
        if self.folder is None:
            return None
        from fedloom.report import write_report

        try:
            return write_report(self.folder, place / "report.html")
        except Exception as error:
            warnings.warn(f"the report could not be made for trackers: {_line(error)}", stacklevel=2)
            return None

    def _try(self, key: str, deed: Callable[[], int | None]) -> int | None:
        """Whatever goes wrong leaves the tracker out, in one line."""
        try:
            return deed()
        except Exception as error:
            del self.trackers[key]
            warnings.warn(f"tracking by {key} failed, and the run goes on without it: {_line(error)}", stacklevel=4)
            if self._runs[key].kept:
                self._note([key])
            return None

    def _note(self, keys: Iterable[str]) -> None:
        """Write down how far trackers know of the run."""
        for key in keys:
            self._record[key] = {"kept": self._runs[key].kept, "told": self._told.get(key, -1)}
        self._write()

    def _write(self) -> None:
        known = {key: value for key, value in self._record.items() if value.get("kept")}
        if self.folder is None or not known:
            return
        try:
            write_json(self.folder / TRACKING, known)
        except Exception as error:
            warnings.warn(f"a resumed run may be tracked as another one: {_line(error)}", stacklevel=4)


def key_of(tracker: Tracker) -> str:
    """A tracker with the settings that are not as usual: "mlflow(uri='…')"."""
    own = [
        f"{field.name}={value!r}"
        for field in dataclasses.fields(tracker)  # type: ignore[arg-type]
        if field.init and (value := getattr(tracker, field.name)) != field.default
    ]
    return f"{name_of(tracker)}({', '.join(own)})" if own else name_of(tracker)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """What was written down; nothing where that cannot be read, or is nothing of ours."""
    try:
        found = loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        warnings.warn(f"{path} cannot be read, so the run is tracked as another one: {_line(error)}", stacklevel=5)
        return {}
    tables = found if isinstance(found, dict) else {}
    return {
        key: {**value, "kept": {name: one for name, one in value["kept"].items() if isinstance(one, str | int | float)}}
        for key, value in tables.items()
        if isinstance(value, dict) and isinstance(value.get("kept"), dict)
    }


def _line(error: Exception) -> str:
    """What went wrong, in a line."""
    said = " ".join(str(error).split())
    return f"{said[:200]}{'…' * (len(said) > 200)}" or type(error).__name__
