"""What came of trials, line by line: all that a tuning needs to go on after it was killed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from fedloom.errors import RunError
from fedloom.storage.closing import Closing
from fedloom.storage.files import guarded, loads
from fedloom.tuning.spaces import Values

LEDGER = "trials.jsonl"
Key = tuple[str, int, int, int]
"""The method's label, the number of the trial, the seed, and after how many rounds."""


@dataclass(frozen=True)
class Outcome:
    """A trial after some rounds."""

    label: str
    trial: int
    seed: int
    rounds: int
    """After so many rounds, unless it was over before."""
    value: float | None
    """The metric on the validation rows; none: the trial is lost."""
    values: Values
    """What it tries."""
    over: bool = False
    """Whether it ended by itself, and has no rounds left to do."""
    lost: str = ""
    """Why it is lost."""
    theta_sha256: str = ""
    """The fingerprint of its model."""

    @property
    def key(self) -> Key:
        """What it is found by."""
        return self.label, self.trial, self.seed, self.rounds


class Ledger(Closing):
    """The outcomes in a file. A last line that a kill has cut off is left out: its trial is done again, in the same
    bits.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[Key, Outcome] = {}
        whole = self._read()
        with guarded(path):
            self._file: BinaryIO = open(path, "ab")  # noqa: SIM115
            self._file.truncate(whole)

    def _read(self) -> int:
        """Take in the lines that are whole; where they end."""
        if not self.path.is_file():
            return 0
        end = 0
        with guarded(self.path):
            lines = self.path.read_bytes().splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            try:
                found = Outcome(**loads(line))
            except (ValueError, TypeError) as error:
                if number == len(lines):
                    break
                raise RunError(
                    f"{self.path}, line {number} is damaged: remove the file, and all trials are done again"
                ) from error
            if not line.endswith(b"\n"):
                break
            self.outcomes[found.key] = found
            end += len(line)
        return end

    def add(self, outcome: Outcome) -> None:
        """Write one down."""
        with guarded(self.path):
            self._file.write((json.dumps(asdict(outcome), allow_nan=False) + "\n").encode())
            self._file.flush()
        self.outcomes[outcome.key] = outcome

    def close(self) -> None:
        """No more are added."""
        self._file.close()
