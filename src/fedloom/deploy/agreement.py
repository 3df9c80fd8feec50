"""What the nodes of a run agree on before its first round, and then never again: how columns and numbers are read.

The server keeps it in the run's folder and sends it with every message, so that a node which was killed, or joins late,
reads its rows as all others do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from fedloom.data.scaling import Scales
from fedloom.deploy.codec import Tree
from fedloom.errors import MessageError
from fedloom.federation.encoding import Encoding
from fedloom.federation.scale import Scale

_PARTS = ("shift", "factor", "mean")


@dataclass(frozen=True, eq=False)
class Agreed:
    """How every node of a run reads its rows."""

    encoding: Encoding | None = None
    """How the columns of files become numbers; none: nodes have numbers."""
    classes: tuple[str, ...] | None = None
    """The classes, where the labels of files were asked for them."""
    wide: tuple[str, ...] = ()
    """Of "x" and "y" those that are kept in float64, since some node has numbers that float32 would round."""
    scales: Scales = (None, None)
    """Of features and of targets; none: each node's own, or none at all."""
    notes: tuple[str, ...] = ()
    """What was agreed, and by whom, in words."""

    def tree(self) -> Tree:
        """For a message, or a file of JSON."""
        return {
            "encoding": None if self.encoding is None else self.encoding.record(),
            "classes": None if self.classes is None else list(self.classes),
            "wide": list(self.wide),
            "scales": [None if scale is None else _written(scale) for scale in self.scales],
            "notes": list(self.notes),
        }

    @property
    def nothing(self) -> bool:
        """Whether nobody has agreed on anything yet."""
        return self.key == _NOTHING

    @cached_property
    def key(self) -> str:
        """What tells one agreement from another."""
        return hashlib.sha256(json.dumps(self.tree()).encode()).hexdigest()

    @staticmethod
    def read(tree: Any) -> Agreed:
        """What ``tree`` gave."""
        try:
            encoding, classes = tree["encoding"], tree["classes"]
            x, y = (None if scale is None else _read(scale) for scale in tree["scales"])
            return Agreed(
                None if encoding is None else Encoding.read(encoding),
                None if classes is None else tuple(classes),
                tuple(tree["wide"]),
                (x, y),
                tuple(tree["notes"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MessageError(
                f"what the nodes agreed on cannot be read ({error!r}); use the same fedloom everywhere"
            ) from None


def _written(scale: Scale) -> dict[str, Any]:
    return {part: getattr(scale, part).tolist() for part in _PARTS}


def _read(written: dict[str, Sequence[Any]]) -> Scale:
    return Scale(*(torch.tensor(written[part], dtype=torch.float64) for part in _PARTS))


def elsewhere(columns: int) -> Scale:
    """The scale of a server whose clients each have their own, which stay with them."""
    nothing = torch.empty(0, columns, dtype=torch.float64)
    return Scale(nothing, nothing, torch.zeros(columns, dtype=torch.float64))


_NOTHING = Agreed().key
