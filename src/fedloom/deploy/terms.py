"""On what terms a fleet works: how long the server waits, for how many, and where the run is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fedloom.errors import ConfigError
from fedloom.types import Count, Positive

ROWS = 1_000_000_000
"""Rows that a node may say to have in a split, unless another limit is given."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Terms:
    """The settings of a deployment: ``[tool.flwr.app.config]`` of the app, or ``flwr run --run-config``."""

    out: str = "run"
    """The folder of the run, on the server; a relative path starts where the SuperLink was started."""
    nodes: Count = 1
    """Nodes that must be there before the run begins …"""
    wait: Positive = 600.0
    """… within so many seconds; also how long the server waits when too few are left."""
    deadline: Positive = 600.0
    """Seconds that nodes have for a reply."""
    minimum: Count = 1
    """Replies without which a round is void; then those who are missing are asked again."""
    tries: Count = 3
    """How often they are asked before the run stops."""
    strikes: Count = 3
    """Failures of a node, one after the other, after which it is left out …"""
    pause: Positive = 600.0
    """… for so many seconds, unless the others are fewer than ``minimum``."""
    rows: Count = ROWS
    """Rows that a node may say to have in a split: its reply counts for as much."""
    norm: Positive = 1e6
    """The largest norm of a tensor in a node's reply, before its weight. A longer one is refused."""
    metric: Positive = 1e9
    """The largest size of a metric without bounds of its own that a node may report."""
    memory: Positive = 0.5
    """Gigabytes of a round's replies that the server holds in memory; the rest waits on its disk, in ``out``."""
    force: bool = False
    """Whether a run that is in the folder is replaced."""

    @staticmethod
    def read(config: Mapping[str, Any]) -> Terms:
        """From Flower's run configuration."""
        try:
            return TypeAdapter(Terms).validate_python(dict(config))
        except ValidationError as error:
            wrong = error.errors()[0]
            at = ".".join(map(str, wrong["loc"]))
            raise ConfigError(f"the run's {at} = {wrong['input']!r} cannot be: {wrong['msg']}") from None
