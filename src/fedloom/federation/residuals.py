"""How far an ADMM is from its end: primal and dual residuals, when to stop, and a penalty that balances the two.

S. Boyd et al., "Distributed optimization and statistical learning via the alternating direction method of multipliers",
2011, sections 3.3.1 and 3.4.1; residuals are balanced relative to their scales as in B. Wohlberg, "ADMM penalty
parameter selection by residual balancing", 2017, https://arxiv.org/abs/1704.06209.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.types import State

_BALANCE, _FACTOR = 3.0, 2.0


@dataclass(frozen=True, eq=False)
class Residuals:
    """The two residuals of a round, and what each is to be compared with."""

    primal: Tensor
    """How much the parties disagree."""
    dual: Tensor
    """How much the dual variables still move."""
    primal_scale: Tensor
    dual_scale: Tensor

    @staticmethod
    def none(clients: int) -> State:
        """The bookkeeping before the first round."""
        unknown = torch.tensor(-1.0, dtype=torch.float64)
        return {"primal": unknown, "dual": unknown, "calm": torch.zeros(clients, dtype=torch.bool)}

    def booked(self, state: State, who: Tensor, stop: float) -> State:
        """The bookkeeping after a round: the residuals, and who answered since both became small."""
        small = bool(self.primal <= stop * self.primal_scale) and bool(self.dual <= stop * self.dual_scale)
        before = state["calm"] if small else torch.zeros_like(state["calm"])
        return {"primal": self.primal, "dual": self.dual, "calm": before.index_fill(0, who, small)}

    def balanced(self, rho: Tensor, noise: float) -> Tensor:
        """ρ for the next rounds: doubled or halved when one relative residual is three times the other.

        Residuals below ``noise``, relative to their scales, are rounding or what solvers leave, and say nothing.
        """
        primal, dual = self.primal / self.primal_scale, self.dual / self.dual_scale
        if not torch.maximum(primal, dual) > noise:
            return rho
        if primal > _BALANCE * dual:
            return rho * _FACTOR
        return rho / _FACTOR if dual > _BALANCE * primal else rho


def settled(state: State, taking_part: Tensor) -> bool:
    """Both residuals stayed small until everybody who takes part had answered again."""
    return bool(state["calm"].any()) and bool((state["calm"] | ~taking_part).all())


def reported(state: State) -> dict[str, float]:
    """The residuals for the history; nothing before the first round."""
    if state["primal"] < 0:
        return {}
    return {"primal_residual": float(state["primal"]), "dual_residual": float(state["dual"])}
