"""How the numbers of a federation were scaled, and the way back to their own units."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Scale:
    """Every column is (what was measured − ``shift``) / ``factor``.

    Both have shape (1, columns), the same for all clients, or (clients, columns), where each client has its own.
    ``mean`` has the shape (columns,) and is the mean over the training rows of all clients, in the columns' own units.
    """

    shift: Tensor
    factor: Tensor
    mean: Tensor

    @property
    def common(self) -> bool:
        """Whether all clients have the same scale."""
        return len(self.shift) == 1

    def of(self, client: int) -> Scale:
        """That of one client alone."""
        return self if self.common else Scale(self.shift[[client]], self.factor[[client]], self.mean)

    def scaled(self, values: Tensor, clients: Tensor) -> Tensor:
        """Rows in their own units as a model reads them, in float64; ``clients`` says whose each row is."""
        shift, factor = self._of(clients)
        return (values.double() - shift) / factor

    def original(self, values: Tensor, clients: Tensor) -> Tensor:
        """Rows in their own units, in float64; ``clients`` says whose each row is."""
        shift, factor = self._of(clients)
        return values.double() * factor + shift

    def _of(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        return (self.shift, self.factor) if self.common else (self.shift[clients], self.factor[clients])
