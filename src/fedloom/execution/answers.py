"""What a worker elsewhere gives back: a result, or the error that came instead, as words that any process can read."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from fedloom import errors
from fedloom.errors import ClientError, FedloomError

Answer = tuple[bool, Any]
"""True and the result, or False and the error's class, text and trace."""


def answered(call: Callable[..., Any], *arguments: Any) -> Answer:
    """The answer of one call, which never raises."""
    try:
        return True, call(*arguments)
    except Exception as error:
        return False, (type(error).__name__, str(error), traceback.format_exc())


def taken(answer: Answer) -> Any:
    """The result, or the error as one of ours, with the trace of the worker as a note."""
    ok, found = answer
    if ok:
        return found
    kind, text, trace = found
    ours: type[FedloomError] | None = getattr(errors, kind, None)
    failure = ours(text) if ours is not None else ClientError(f"{kind}: {text}")
    failure.add_note(f"In the worker process:\n{trace}")
    raise failure
