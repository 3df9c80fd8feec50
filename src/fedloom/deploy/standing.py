"""Who can be counted on: what the server remembers of the clients' failures, and for how long it leaves one out."""

from __future__ import annotations

import time


class Standing:
    """A client that missed a deadline is not waited for alone until it is heard of again, so that a dead one costs one
    deadline and not one in every round; a client that fails again and again is left out for a while."""

    def __init__(self, strikes: int, pause: float) -> None:
        self.strikes, self.pause = strikes, pause
        self.silent: set[int] = set()
        """Who missed the last deadline and was not heard of since."""
        self.trusted: set[int] = set()
        """Whose replies were taken, once or more."""
        self._failures: dict[int, int] = {}
        self._until: dict[int, float] = {}

    def replied(self, client: int) -> None:
        """Its reply was taken: all is forgotten."""
        self.trusted.add(client)
        self.silent.discard(client)
        self._failures.pop(client, None)
        self._until.pop(client, None)

    def failed(self, client: int) -> None:
        """Its reply was refused; the count goes on after a pause, so that who comes back and fails is out again."""
        self._failures[client] = self._failures.get(client, 0) + 1
        if self._failures[client] >= self.strikes:
            self._until[client] = time.monotonic() + self.pause

    def missed(self, client: int) -> None:
        """No reply came."""
        self.silent.add(client)
        self.failed(client)

    def left_out(self, client: int) -> bool:
        """Whether it is left out now."""
        return self._until.get(client, -1.0) > time.monotonic()

    def why(self, client: int) -> str:
        """Why it is left out."""
        return f"it is left out for a while, after {self._failures[client]} failures one after the other"
