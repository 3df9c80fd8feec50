"""The baseline of full cooperation: all training data in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedloom.federation.replies import Replies
from fedloom.methods.method import Context
from fedloom.methods.register import register
from fedloom.methods.training import ClientTraining
from fedloom.types import State


@register("central", family="baseline", declaration=".baselines:CENTRAL")
@dataclass(frozen=True)
class Central(ClientTraining):
    """All training data pooled in one place.

    Plain training on the pooled rows of all source clients: what one could do if the data were allowed to meet.
    """

    coordinatewise = True
    layout: ClassVar[Literal["rows", "pooled"]] = "pooled"

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + replies.mean("dx")}
