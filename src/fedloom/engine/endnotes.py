"""What a user should know of a run that has ended: a target missed, a model that diverged, a stream cut short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedloom.data.remedies import public_note
from fedloom.engine.decision import notes_on
from fedloom.engine.engine import Engine
from fedloom.engine.evaluation import VALIDATION
from fedloom.federation.data import SOURCE
from fedloom.federation.scores import BINS
from fedloom.storage.history import Row

_RISEN = 10.0  # times the first loss: no run that learns ends there


def endnotes(engine: Engine, summary: dict[str, Any], rows: Sequence[Row]) -> list[str]:
    """All of them, in the order of the summary, the model and the data."""
    found = [_missed(summary), *_chosen(summary), *notes_on(summary), *_inexact(summary)]
    found += [public_note(engine.problem.data), _diverged(engine) or _risen(rows), _undelivered(engine)]
    return [note for note in found if note]


def _missed(summary: dict[str, Any]) -> str | None:
    """A note when a run ended before it reached its target."""
    target = summary.get("target")
    if target is None or target["reached"] is not None:
        return None
    limit = f"round {summary['rounds']}, {summary['simulated_seconds']:g} simulated seconds"
    found = summary["metrics"].get(target["metric"], float("nan"))
    return (
        f"the target {target['metric']} = {target['value']:g} was not reached: the run ended by its limit of "
        f"{summary['stopped']} ({limit}) at {found:.4g}"
    )


def _diverged(engine: Engine) -> str | None:
    """A note when a run ended with a model or a state that is not finite: replies are looked at, their sums are not."""
    theta = engine.theta()
    like = {f"state {key!r}": value for key, value in engine.state.items() if value.shape == theta.shape}
    wrong = [name for name, value in {"model": theta, **like}.items() if not bool(value.isfinite().all())]
    if not wrong:
        return None
    return (
        f"the run has diverged: after round {engine.clocks.round} the server's {', '.join(wrong)} is not finite; "
        "try smaller step sizes"
    )


def _risen(rows: Sequence[Row]) -> str | None:
    """A note when the loss is far above where it began: such a run is on its way to infinity, or has learnt nothing."""
    if not rows:
        return None
    before, after = (((row.get("evaluation") or {}).get("loss") or {}).get("weighted") for row in (rows[0], rows[-1]))
    if before is None or after is None or not after > _RISEN * before > 0:
        return None
    return f"the run is diverging: the loss rose from {before:.3g} to {after:.3g}; try smaller step sizes"


def _undelivered(engine: Engine) -> str | None:
    """A note when a run ended before its stream had brought all rows."""
    if engine.online is None:
        return None
    clients, sizes = engine.problem.data.with_role(SOURCE), engine.problem.data.splits["train"].sizes
    come, whole = engine.online.arrived(clients.numpy(), engine.clocks.simulated_seconds), int(sizes[clients].sum())
    if come >= whole:
        return None
    return (
        f"the stream had brought {come:,} of {whole:,} training rows ({come / whole:.0%}) when the run ended, after "
        f"{engine.clocks.simulated_seconds:g} simulated seconds; run it longer, or let rows come faster"
    )


def _chosen(summary: dict[str, Any]) -> Iterator[str]:
    """What a user should know of how patience chose the model."""
    best = summary.get("best")
    if best is None:
        return
    if not best["split"].startswith(VALIDATION):
        yield (
            f"the {best['split']} rows chose when to stop, and judge the result: it looks better than it is. Give "
            "data.validation a share, such as 0.2, to choose on other rows"
        )
    if not best["kept"]:
        yield (
            f"round {best['round']} was best, but the models are those of round {summary['rounds']}: clients keep "
            f"their own models as they are. Run it for {best['round']} rounds to have those"
        )


def _inexact(summary: dict[str, Any]) -> Iterator[str]:
    """How exact metrics are that were worked out from bins."""
    for name, error in summary.get("inexact", {}).items():
        yield f"{name} is that of scores in {BINS:,} bins, for nodes show no single rows: right to ± {error:.2g}"
