"""The words of the contract: everything that is kept or sent is a plain dict of tensors."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Interval
from torch import Tensor

Vector = Tensor
"""A model, shape (..., n). A leading axis, when there is one, is the stack of clients."""

Message = dict[str, Tensor]
"""Everything that crosses the network; its serialised size is what the ledger counts."""

State = dict[str, Tensor]
"""What the server keeps between rounds."""

Memory = dict[str, Tensor]
"""What one client keeps between rounds; it never leaves the client."""

Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Interval(ge=0, le=1)]
Decay = Annotated[float, Interval(ge=0, lt=1)]
Count = Annotated[int, Ge(1)]
Key = tuple[str | int, ...]
"""The way to a setting: names of tables and keys, and places in lists; ("method", "lr")."""
