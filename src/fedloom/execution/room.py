"""Where the replies of a round are put together."""

from __future__ import annotations

from torch import Tensor


class Room:
    """Columns in memory."""

    def column(self, rows: int, like: Tensor) -> Tensor:
        """A column of so many rows, each like those of ``like``; what is in it is not defined."""
        return like.new_empty(rows, *like.shape[1:])

    def only(self, column: Tensor, rows: Tensor) -> Tensor:
        """These rows of a column, in ascending order; the column itself is not needed any more."""
        return column[rows]

    def rest(self) -> None:
        """What has been read or written last is not needed for the moment."""
