"""Clients whose data keep arriving, as the engine sees them: what each holds, what of it is new, what others know."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedloom.engine.fleet import Fleet
from fedloom.errors import ConfigError
from fedloom.execution.work import Tested
from fedloom.federation.data import FederatedData
from fedloom.federation.metrics import Metric, Predictions, loss_metric
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ints, Window
from fedloom.federation.streams import Arrivals, Stream


def check_stream(stream: Stream, data: FederatedData, fleet: Fleet, seed: int) -> None:
    """Refuses a stream that cannot be, and one whose clock would stand still."""
    stream.check(data, seed)
    if fleet.timeless and not stream.still:
        raise ConfigError(
            "rows come by the simulated clock, but on this fleet a round takes no time, so that none would ever come; "
            "give the fleet a speed or delays (fleet.speed = 100, or fleet.preset = 'cross-device')"
        )


class Online:
    """A stream on its way. It keeps what has been evaluated, what the server was told, and whose memory begins where.

    All times are those of the simulated clock. ``storage`` bounds the rows that a client holds: the newest ones. The
    pool of ``central`` is no device: it keeps everything.
    """

    def __init__(self, arrivals: Arrivals, storage: int | None = None) -> None:
        self.arrivals, self.storage = arrivals, storage
        clients = len(arrivals.train)
        self._told = self.windows(np.arange(clients), 0.0)[1]
        self._judged, self._kept = np.zeros(clients, dtype=np.int64), np.zeros(clients, dtype=np.int64)
        self._tests: Prequential | None = None

    @staticmethod
    def of(
        problem: Problem, stream: Stream, seed: int, storage: int | None = None, pooled: bool = False
    ) -> tuple[Problem, Online]:
        """A stream at its beginning, and the problem with all of its rows in the order of their arrival."""
        data = stream.arranged(problem.data, seed)
        arrivals = stream.arrivals(data, seed)
        if pooled:
            data, arrivals = arrivals.with_pool(data)
        return problem.on(data), Online(arrivals, None if pooled else storage)

    @property
    def sizes(self) -> Tensor:
        """The rows of each client that the server knows of: those of its last reply, or of the beginning."""
        return torch.from_numpy(self._told.copy())

    def windows(self, clients: Ints, now: float) -> Window:
        """The rows that each client holds now: the first one, and how many."""
        come = self.arrivals.held(clients, now)
        held = come if self.storage is None else np.minimum(come, self.storage)
        return come - held, held

    def fresh(self, clients: Ints, window: Window) -> Window:
        """The rows of a window that have not been evaluated yet."""
        first, held = window
        unseen = np.maximum(first, self._judged[clients])
        return unseen, first + held - unseen

    def moved(self, clients: Ints, window: Window) -> Ints:
        """How many first rows have left each client since its memory was kept."""
        return window[0] - self._kept[clients]

    def present(self, clients: Ints, now: float) -> Ints:
        """Those of the clients that have rows."""
        return clients[self.arrivals.held(clients, now) > 0]

    def arrived(self, clients: Ints, now: float) -> int:
        """How many rows have come to these clients by now."""
        return int(self.arrivals.held(clients, now).sum())

    def ready(self, client: int, now: float) -> float:
        """The time from which a client has rows: now, or when its first one comes."""
        return max(now, float(self.arrivals.first(np.array([client]))[0]))

    def meet(self, clients: Ints, now: float) -> None:
        """Clients that can be asked say how many rows they have, if the server knows of none."""
        new = clients[self._told[clients] == 0]
        self._told[new] = self.windows(new, now)[1]

    def tell(self, clients: Ints, held: Ints) -> None:
        """Replies say how many rows their clients trained on."""
        self._told[clients] = held

    def keep(self, clients: Ints, window: Window) -> None:
        """Memories were kept that belong to the rows of a window."""
        self._kept[clients] = window[0]

    def taken(self, clients: Ints, fresh: Window, counts: Ints) -> None:
        """Fresh rows were evaluated: so many of each client, all or, where the client failed, none."""
        self._judged[clients] = np.where(counts > 0, fresh[0] + counts, self._judged[clients])

    def test_by(self, problem: Problem, metrics: list[Metric]) -> None:
        """Test, then train: new rows are evaluated by these metrics before anybody trains on them."""
        self._tests = Prequential(problem, metrics)

    def note(self, clients: Ints, window: Window, found: Tested) -> None:
        """Take in what models said of the new rows of a window."""
        assert self._tests is not None
        fresh = self.fresh(clients, window)
        self._tests.add(clients, fresh, found)
        self.taken(clients, fresh, found.counts.numpy())

    def tested(self) -> dict[str, float]:
        """How good models were on the new rows, since this was asked last."""
        assert self._tests is not None
        summary, self._tests = self._tests.summary(), Prequential(self._tests.problem, self._tests.metrics)
        return summary

    def snapshot(self) -> dict[str, Tensor]:
        """All that changes on the way, for a checkpoint."""
        return {key: torch.from_numpy(value.copy()) for key, value in self._changing().items()}

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Go on from a snapshot."""
        for key, value in self._changing().items():
            value[:] = saved[key].numpy()

    def _changing(self) -> dict[str, Ints]:
        return {"told": self._told, "judged": self._judged, "kept": self._kept}


class Prequential:
    """Test, then train: how good models were on rows that nobody had trained on yet, over all such rows of a round."""

    def __init__(self, problem: Problem, metrics: list[Metric]) -> None:
        self.problem, self.metrics = problem, metrics
        self._keys: list[Ints] = []
        self._out: list[Tensor] = []
        self._y: list[Tensor] = []

    def add(self, clients: Ints, fresh: Window, found: Tested) -> None:
        """What models said of the fresh rows of some clients."""
        counts = found.counts.numpy()
        place = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        self._keys.append(np.stack([np.repeat(clients, counts), np.repeat(fresh[0], counts) + place]))
        self._out.append(found.out.clone())
        self._y.append(found.y.clone())

    def summary(self) -> dict[str, float]:
        """Each metric over all rows, and how many rows they were; rows count in order of client and arrival.

        So the order in which results came does not matter.
        """
        rows = sum(map(len, self._y))
        if rows == 0:
            return {"rows": 0}
        keys = np.concatenate(self._keys, 1)
        order = torch.from_numpy(np.lexsort((keys[1], keys[0])))
        out, y = torch.cat(self._out)[order], torch.cat(self._y)[order]
        ids, place, rows_of = np.unique(keys[0][order.numpy()], return_inverse=True, return_counts=True)
        clients, owner, counts = (torch.from_numpy(column) for column in (ids, place, rows_of))
        data, loss = self.problem.data, self.problem.loss
        predictions = Predictions(out, y, owner, counts, data.task, loss.threshold, loss.link)
        shown = predictions.original(data.y_scale, clients)
        found = {metric.name: _of_all(metric, shown) for metric in self.metrics}
        own = loss_metric(loss)
        return {"rows": rows} | found | {own.name: _of_all(own, predictions)}


def _of_all(metric: Metric, rows: Predictions) -> float:
    """The metric of the rows of all clients together."""
    if metric.joined:
        return metric.of_points(metric.points(rows))
    return float(metric.value(metric.counts(rows).sum(0)))
