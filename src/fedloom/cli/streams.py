"""Standard streams that cannot stop a run: closed from the start, closed on the way, or on a full disk."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any


class _Patient(io.FileIO):
    """A stream whose first failure is remembered; what comes after it goes nowhere, and the run goes on."""

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        """The number of bytes that are done with."""
        try:
            return super().write(data) or 0
        except BlockingIOError:
            raise
        except OSError as error:
            self.failure = error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(memoryview(data).cast("B"))


class Streams:
    """Standard output and standard error, patient unless they are a terminal."""

    def __init__(self) -> None:
        _open_all()
        self._made: dict[str, _Patient] = {}
        for name, number in (("stdout", 1), ("stderr", 2)):
            if (before := getattr(sys, name)) is None or not before.isatty():
                raw = _Patient(number, "w", closefd=False)
                how: dict[str, Any] = {"encoding": getattr(before, "encoding", None) or "utf-8", "errors": "replace"}
                stream = io.TextIOWrapper(io.BufferedWriter(raw), line_buffering=True, **how)
                setattr(sys, name, stream)
                self._made[name] = raw

    def close(self) -> int:
        """The exit code that is owed to the streams: 0, or 1 if something was not said that somebody waits for.

        A reader that has closed its end of a pipe has had enough.
        """
        for name in self._made:
            getattr(sys, name).flush()
        said = self._made.get("stdout")
        failure = None if said is None else said.failure
        if failure is None or failure.errno == errno.EPIPE:
            return 0
        print(f"error: standard output could not be written: {failure.strerror}", file=sys.stderr)
        return 1


def _open_all() -> None:
    """Opens what is closed, to nowhere: the next file that is opened would otherwise become standard output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
