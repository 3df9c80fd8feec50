"""What has to be closed, and is at the end of a ``with``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Closed at the end of a ``with``, whatever happens in it."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of everything that it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
