"""What stands beside the tensors in a run's checkpoint, as its readers count on it; a checksum can be forged too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le, Len
from pydantic import BaseModel, ConfigDict, ValidationError

from fedloom.errors import RunError
from fedloom.storage.checkpoint import NEWEST

Whole = Annotated[int, Ge(0), Le(2**63 - 1)]
Amount = Annotated[float, Ge(0)]


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Clocks(_Table):
    round: Whole
    simulated_seconds: Amount = 0.0
    bytes_up: Whole = 0
    bytes_down: Whole = 0
    gradient_evaluations: Whole = 0
    wall_seconds: Amount = 0.0
    server_steps: Whole = 0


class _Seal(_Table):
    run: str
    parts: dict[str, dict[str, str]]


class _Forced(_Table):
    round: Whole
    changes: list[str]


class _Flight(_Table):
    counts: Annotated[list[Whole], Len(3, 3)]
    wave: Whole
    picks: Whole
    idle: list[Whole]
    sleeping: list[Annotated[list[Amount], Len(2, 2)]]
    jobs: list[Any]


class _Meta(_Table):
    clocks: _Clocks
    reply_bytes: Whole
    theta: str | None
    shapes: dict[str, list[Whole]]
    remembers: bool = False
    forced: list[_Forced] = []
    flight: _Flight | None = None


class _Sealed(_Meta):
    seal: _Seal
    history: str
    theta_sha256: str
    files: dict[str, str]


def check_meta(folder: Path, meta: dict[str, Any]) -> None:
    """A RunError unless a checkpoint of a run's folder says what every run writes; one of an older fedloom had no seal.

    * ``folder``: where the checkpoint is. ``meta``: what it says.
    """
    form = _Sealed if "seal" in meta else _Meta
    try:
        form.model_validate(meta)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RunError(
            f"{folder / NEWEST} is damaged, or was not written by fedloom ({where}: {first['msg']}). Take another "
            "checkpoint of the run, or start it again."
        ) from None
