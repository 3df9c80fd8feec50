"""``fedloom.compare``: methods × seeds, or × folds, under the same settings, in one call."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedloom.comparison.comparison import Comparison
from fedloom.comparison.entries import entries_of, swept
from fedloom.comparison.protocol import Judge, checked_judge
from fedloom.comparison.repeats import Key
from fedloom.comparison.sources import FromProblem, FromSettings, Source
from fedloom.engine.run import Progress, Run, load_run
from fedloom.errors import ConfigError, FedloomError, RunError
from fedloom.experiment import Settings
from fedloom.experiment.faults import Faults
from fedloom.federation.problem import Problem
from fedloom.fields import checked
from fedloom.methods import Method
from fedloom.report.groups import Group
from fedloom.report.notebook import draw, grouped, table_html
from fedloom.report.progress import shown
from fedloom.report.words import plural
from fedloom.storage.history import Row

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

Follow = Callable[[str, Row, int], None]
SEEDS = 3
"""How many seeds each method has, unless that is said."""


@dataclass(eq=False, repr=False)
class Compared:
    """What came of a comparison."""

    table: list[dict[str, Any]]
    """A row for each method: "label", and for each quantity its mean and, as NAME_std_over_runs, its spread."""
    runs: dict[Key, Run]
    """By the method's label and the seed; of a cross-validation by label, seed and fold."""
    failed: dict[Key, str]
    """What went wrong in the runs that failed, by the same."""
    folder: Path | None = None
    report: Path | None = None
    """The page, where one was written."""
    notes: list[str] = field(default_factory=list)
    """What should be known of single runs that were made now: that one diverged, say."""

    def frame(self) -> pd.DataFrame:
        """The table as a data frame: a row a method, columns such as "accuracy" and "accuracy_std_over_runs"."""
        import pandas as pd

        return pd.DataFrame(self.table).set_index("label")

    def plot(
        self,
        kind: Literal["curves", "clients", "gain", "participation", "fleet", "tasks"] = "curves",
        metric: str | None = None,
        **how: Any,
    ) -> Figure:
        """All methods in one plotly figure, as ``Run.plot`` draws one run: means over seeds, with bands."""
        return draw(self._groups(), kind, metric, **how)

    def _groups(self) -> list[Group]:
        labels = dict.fromkeys(key[0] for key in self.runs)
        return grouped({name: [run for key, run in self.runs.items() if key[0] == name] for name in labels})

    def __repr__(self) -> str:
        failed = f", {plural(len(self.failed), 'failed run')}" if self.failed else ""
        kept = f", in {self.folder}" if self.folder is not None else ""
        labels = ", ".join(dict.fromkeys(key[0] for key in self.runs))
        said = "".join(f"; note: {note}" for note in self.notes)
        return f"Compared({labels}: {plural(len(self.runs), 'run')}{failed}{kept}{said})"

    def _repr_html_(self) -> str:
        return table_html(self._groups(), None, repr(self).removeprefix("Compared(").removesuffix(")"))


@checked(itself=("methods", "on"))
def compare(
    methods: str | Method | Sequence[str | Method] | Mapping[str, str | Method],
    on: Problem | Sequence[Problem] | str | Path | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    seeds: int | Sequence[int] | None = None,
    folds: int | str | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    out: str | Path | None = None,
    force: bool = False,
    target: float | None = None,
    protocol: Judge = "alike",
    report: bool = True,
    progress: Follow | bool | None = None,
    **how: Any,
) -> Compared:
    """Compare methods under equal settings, each with several seeds.

    What is compared:

    * ``methods``: names ("fedavg"), names with settings ("fedavg:epochs=5,lr=0.1"), or Method objects, of which those
      hyper-parameters count that are not the defaults. In a dict each has the name that its row is to have; so has
      "Ours=mine:FedX:alpha=0.1".
    * ``on``: the file of an experiment, none for the default settings, or a Problem that you have made; a list of them
      is one for each fold.
    * ``settings``: changes to the settings of the file, by their full keys: ``{"data.name": "digits"}``. A setting of
      the method goes to the methods that know it.
    * ``seeds``: how many, from the settings' own on, or the seeds themselves; none: 3, and with folds 1.
    * ``folds``: cross-validation, 5 over each client's rows, "clients" to leave out each client once, "clients:5" in
      five groups. The runs are then by label, seed and fold.
    * ``sweep``: lists of values for any setting, ``{"method.lr": [0.1, 0.01]}``: each method is there once for each
      combination. On a Problem that is a hyper-parameter ("method.lr") or an argument of ``train`` ("rounds").
    * ``protocol``: "alike" evaluates all on the same clients and rows, each by its own model: where a method adapts
      to some of the test rows first, all are judged on the others. "own": each on the rows that it would have alone.
    * ``how``: on a Problem, the further arguments of ``train``, such as ``rounds=30`` and ``select=10``.

    What becomes of it:

    * ``out``: the folder of the comparison, as ``fedloom compare`` makes one. Called again with the same arguments, it
      goes on where it stopped: what is done is not done twice. None: nothing is kept.
    * ``force``: replace what is in the folder.
    * ``target``: a value of the metric; the table then says when each method reached it.
    * ``report``: whether ``report.html`` is written into the folder.
    * ``progress``: whether a bar shows the rounds of each run; none: on a terminal and in a notebook. Or your own
      function, called after every round with the title of the run, the row of the history and the last round.

    The result has the ``table``, also as a data ``frame()``, all ``runs``, and what went wrong in those that
    ``failed``; one that fails does not keep the others from being done.

        compared = fedloom.compare(["fedavg", "local"], settings={"data.name": "digits", "rounds": 2}, seeds=2)
        print(compared.frame()["accuracy"])
    """
    source, first = _source(on, {**(settings or {}), **({} if folds is None else {"data.folds": folds})}, how, protocol)
    entries = entries_of(methods)
    count = usual_seeds(source) if seeds is None else seeds
    chosen = list(range(first, first + count)) if isinstance(count, int) else list(count)
    if not entries or not chosen:
        raise ConfigError("a comparison needs at least one method and one seed")
    comparison = Comparison(source, swept(entries, sweep or {}), chosen)
    comparison.check()

    notes = list[str]()

    def tell(title: str, done: Run | FedloomError | None) -> None:
        said = done.notes if isinstance(done, Run) else []
        notes.extend(f"{title.partition('] ')[2]}: {note}" for note in said)

    @contextmanager
    def watch(title: str, place: Path) -> Iterator[Progress]:
        with shown(partial(progress, title) if callable(progress) else progress, title) as follow:
            yield follow or (lambda row, rounds: None)

    with ExitStack() as exits:
        kept = out is not None
        folder = Path(out or exits.enter_context(tempfile.TemporaryDirectory(prefix="fedloom-")))
        comparison.claim(folder, [], force)
        failed = comparison.perform(folder, force, watch, tell)
        if len(failed) == len(comparison):
            said = [f"{told(key)}: {error}" for key, error in failed.items()]
            raise RunError(f"all runs failed: {'; '.join(said)}")
        comparison.conclude(folder, target)
        runs = {
            repeat.key(entry.text): load_run(comparison.place(folder, entry, repeat), kept)
            for entry, repeat in comparison.runs()
            if repeat.key(entry.text) not in failed
        }
        page = comparison.write_report(folder, target) if report and kept else None
        return Compared(comparison.table, runs, failed, folder if kept else None, page, notes)


def _source(
    on: Problem | Sequence[Problem] | str | Path | None, settings: Mapping[str, Any], how: dict[str, Any], protocol: str
) -> tuple[Source, int]:
    """What is common to all runs, and their first seed."""
    judge = checked_judge(protocol)
    several = isinstance(on, list | tuple) and len(on) > 0 and all(isinstance(one, Problem) for one in on)
    if on is not None and not several and not isinstance(on, Problem | str | Path):
        raise ConfigError(f"compare needs a Problem or the file of an experiment, not {on!r}")
    if on is not None and not isinstance(on, str | Path):
        if "data.folds" in settings:
            raise ConfigError(
                "the rows of a Problem are split already: give a list of problems, one for each fold, from "
                "fedloom.federate(…, folds=5, fold=1) and so on"
            )
        if settings:
            raise ConfigError("settings are those of an experiment: on a Problem give the arguments of train instead")
        return FromProblem(on, how, judge), 0
    if how:
        raise ConfigError(
            f"{', '.join(how)}: arguments of train go with a Problem; give settings={{…}} by their keys in a file"
        )
    base = Settings.read(on, settings)
    return FromSettings(base, judge), first_seed(base)


def usual_seeds(source: Source) -> int:
    """How many seeds, unless it is said: one where folds are the repeats."""
    folds = source.base.get(("data", "folds")) if isinstance(source, FromSettings) else len(source.problems) > 1
    return 1 if folds else SEEDS


def told(key: Key) -> str:
    """A run in words."""
    label, seed, *fold = key
    return f"{label}, seed {seed}" + (f", fold {fold[0]}" if fold else "")


def first_seed(base: Settings) -> int:
    """The seed that the settings have."""
    first = base.values.get("seed", 0)
    if not isinstance(first, int):
        faults = Faults(base)
        faults.add(("seed",), "should be a whole number")
        faults.stop()
    return int(first)
