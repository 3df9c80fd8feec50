"""The server's model on the very rows on which clients' own models were judged: a gain is a gain over something."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedloom.engine.evaluation import Verdict

if TYPE_CHECKING:
    from fedloom.engine.evaluator import Evaluator

_PER_CLIENT_MOST = 10_000


def per_client(verdict: Verdict) -> dict[str, list[Any]] | None:
    """Every client's value of each metric, by the clients' numbers; None where they are too many to write down."""
    if len(verdict.clients) > _PER_CLIENT_MOST:
        return None
    values = {name: value.tolist() for name, value in verdict.values.items()}
    return {"clients": verdict.clients.tolist(), **values}


def global_beside(evaluator: Evaluator) -> dict[str, Any] | None:
    """What the summary says of the server's model beside clients' own: its values, or what there is instead of it.

    None where the main evaluation is of the server's model itself: of parties with columns, of a method that makes no
    other.
    """
    main, method = evaluator.evaluations[0], evaluator.engine.setting.method
    if main.model == "global" or (main.model == "personal" and method.evaluates == "global"):
        return None
    if method.stand_in:
        return {"stand_in": method.stand_in}
    verdict = evaluator.evaluate(replace(main, model="global", split=main.evaluated))
    found: dict[str, Any] = {"spread": verdict.summary()}
    each = per_client(verdict)
    return found if each is None else found | {"per_client": each}
