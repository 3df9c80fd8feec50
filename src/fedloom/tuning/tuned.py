"""``fedloom.tune``: the settings of methods, found by trials on validation rows, in one call."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.comparison.comparing import first_seed
from fedloom.comparison.entries import entries_of
from fedloom.comparison.sources import FromProblem, FromSettings, Source
from fedloom.engine.run import Run, load_run
from fedloom.errors import ConfigError
from fedloom.experiment import Override, Settings
from fedloom.experiment.data import VALIDATION
from fedloom.federation.problem import Problem
from fedloom.fields import checked
from fedloom.methods import Method
from fedloom.report.html import render
from fedloom.report.progress import shown
from fedloom.report.words import plain, plural, text
from fedloom.tuning.page import (
    cells_of,
    read_trials,
    settings_text,
    sorted_rows,
    titles_of,
    trial_figure,
    write_tuning_page,
)
from fedloom.tuning.plan import parse_budget
from fedloom.tuning.spaces import read_space
from fedloom.tuning.tuning import Asked, Tuning, best_row
from fedloom.tuning.walk import Moment, Tell

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure


_PATHS = (("data", "path"), ("fleet", "trace"), ("prior", "run"))
"""Settings that are places on the disk."""


@dataclass(eq=False, repr=False)
class Tuned:
    """What came of a tuning."""

    table: list[dict[str, Any]]
    """A row for each method: what was found ("values"), and its metric on validation and test rows, tuned and not."""
    trials: list[dict[str, Any]]
    """A row for each trial: how many rounds it had, its values, its metric on the validation rows."""
    higher: bool
    """Whether more of the metric is better."""
    runs: dict[str, Run] = field(default_factory=dict)
    """The run of each method with what was found."""
    share_training: float = 0.0
    """The share of the time in which rounds were done."""
    notes: list[str] = field(default_factory=list)
    folder: Path | None = None
    report: Path | None = None
    """The page, where one was written."""

    @property
    def best(self) -> dict[str, Any]:
        """The row of the best method that can be used; a ConfigError where all trials are lost."""
        found = best_row(self.table, self.higher)
        if found is None:
            raise ConfigError("all trials of all methods are lost: try smaller step sizes, or another space")
        return dict(found)

    def frame(self) -> pd.DataFrame:
        """The table as a data frame: a row a method."""
        import pandas as pd

        return pd.DataFrame(self.table).set_index("label")

    def plot(self, setting: str | None = None, method: str | None = None) -> Figure:
        """All trials of a method as a plotly figure, against one of its settings ("method.lr").

        * ``setting``: none: the first that was tuned. ``method``: its label; none: the best one's.
        """
        label = method or str(self.best["label"])
        keys = [key for line in self.trials if line["label"] == label for key in line if key.startswith("method.")]
        key = setting or next(iter(keys), "")
        figure = trial_figure(self.trials, label, key, str(self.table[0]["metric"]))
        if figure is None:
            known = ", ".join(dict.fromkeys(keys)) or "none"
            raise ConfigError(f"{label!r} has no trials with a setting {key!r}; they have {known}")
        return figure

    def __repr__(self) -> str:
        found = best_row(self.table, self.higher)
        kept = f", in {self.folder}" if self.folder is not None else ""
        if found is None:
            return f"Tuned({plural(len(self.table), 'method')}, all trials lost{kept})"
        said = f"{found['label']} with {settings_text(found['values'])}"
        return f"Tuned(best of {plural(len(self.table), 'method')}: {said}, {found['metric']} " + (
            f"{text(plain, found['validation'])} on validation rows{kept})"
        )

    def _repr_html_(self) -> str:
        lines = [(row["label"], [(cell, False) for cell in cells_of(row, self.higher)]) for row in self._sorted()]
        titles = ["Method", *titles_of(str(self.table[0]["metric"]))]
        return render("notebook.html", caption=repr(self), titles=titles, lines=lines)

    def _sorted(self) -> list[Mapping[str, Any]]:
        return sorted_rows(self.table, self.higher)


@checked(itself=("methods", "on", "space", "budget"))
def tune(
    methods: str | Method | Sequence[str | Method] | Mapping[str, str | Method],
    on: Problem | str | Path | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    budget: str | float | None = None,
    trials: int | None = None,
    space: Mapping[str, Any] | None = None,
    sampler: str = "sobol",
    repeats: int = 1,
    out: str | Path | None = None,
    force: bool = False,
    report: bool = True,
    progress: Callable[[Moment], None] | bool | None = None,
    **how: Any,
) -> Tuned:
    """Find good settings for methods: many short trials, of which the best go on, judged on validation rows.

    What is tuned:

    * ``methods``, ``on``, ``settings``, ``how``: as ``compare`` has them. What you give a method stays as it is.
    * ``space``: where to look, by full keys, instead of what methods declare: ``{"method.lr": (0.001, 1, "log")}``, a
      tuple of whole numbers, a list of choices, a Search, or a text as the command line has it. Also other settings,
      such as ``{"model.hidden": [32, 64]}``.

    How much is tried, which is the same for every method:

    * ``budget``: a time, "10m" or seconds; the pace of each method is measured once, and the plan recorded.
    * ``trials``: or so many trials of each method, without a clock; 9 where neither is given.
    * ``sampler``: "sobol", "random" or "grid"; "tpe", "gp" and "cmaes" are optuna's.
    * ``repeats``: with how many seeds the finalists are compared.

    What becomes of it:

    * ``out``: the folder; called again with the same arguments it goes on where it stopped. None: nothing is kept.
    * ``force``: replace what is in the folder. ``report``: whether report.html is written into it.
    * ``progress``: whether a bar is shown; none: on a terminal and in a notebook. Or your own function, called with a
      Moment whenever there is something to tell.

    The defaults are a trial too, so what is found is never worse than they are on the validation rows. Test rows are
    looked at at the end, for the defaults and the best of each method.

        tuned = fedloom.tune(["fedavg", "fedprox"], settings={"data.name": "digits", "rounds": 3}, trials=3)
        print(tuned.best["label"], tuned.best["values"], tuned.frame()["test"])
    """
    source, first = source_of(on, settings, how)
    asked = Asked(read_space(space or {}), sampler, trials, None if budget is None else parse_budget(budget), repeats)
    tuning = Tuning(source, entries_of(methods), first, asked)
    tuning.check()
    with ExitStack() as exits:
        kept = out is not None
        folder = Path(out or exits.enter_context(tempfile.TemporaryDirectory(prefix="fedloom-")))
        tell = exits.enter_context(_telling(progress))
        table = tuning.perform(folder, [], force, tell)
        return concluded(tuning, folder, table, report and kept, kept)


def concluded(tuning: Tuning, folder: Path, table: list[dict[str, Any]], report: bool, kept: bool = True) -> Tuned:
    """The result of a tuning that is done, and its page."""
    assert tuning.plan is not None
    lines = read_trials(folder / "trials.csv")
    notes = list(dict.fromkeys([*tuning.plan.notes, *tuning.notes]))
    record = tuning.record(table)
    page = None
    if report:
        facts = [
            f"{plural(len(table), 'method')}, {plural(len(lines), 'trial')}",
            f"chosen on {tuning.plan.split} rows",
            f"{tuning.asked.sampler} sampler",
            f"{record['share_training']:.0%} of the time in training",
        ]
        page = write_tuning_page(
            folder,
            table,
            lines,
            data=tuning.source.data,
            best=best_row(table, tuning.higher),
            higher=tuning.higher,
            split=tuning.plan.split,
            notes=notes,
            facts=facts,
        )
    runs = {row["label"]: load_run(folder / row["folder"], kept) for row in table if row["folder"] is not None}
    share = float(record["share_training"])
    return Tuned(table, lines, tuning.higher, runs, share, notes, folder if kept else None, page)


def source_of(
    on: Problem | str | Path | None, settings: Mapping[str, Any] | None, how: dict[str, Any]
) -> tuple[Source, int]:
    """What is common to all trials, and the first seed."""
    if isinstance(on, Problem):
        if settings:
            raise ConfigError("settings are those of an experiment: on a Problem give the arguments of train instead")
        seed = how.pop("seed", 0)
        return FromProblem(on, how), int(seed)
    if how:
        raise ConfigError(
            f"{', '.join(how)}: arguments of train go with a Problem; give settings={{…}} by their keys in a file"
        )
    return from_settings(Settings.read(on, settings or {}))


def from_settings(base: Settings) -> tuple[FromSettings, int]:
    """Settings as the source of trials: with validation rows, unless the user said how many."""
    for key in _PATHS:
        given = base.get(key)
        if isinstance(given, str):  # so that a folder alone tells, wherever it is gone on from
            base.set(Override(".".join(key), str((base.folder_of(key) / given).resolve()), base.place(key) or ""))
    if base.get(("data", "validation")) is None:
        base.set(Override("data.validation", VALIDATION, ""))
    return FromSettings(base), first_seed(base)


@contextmanager
def _telling(progress: Callable[[Moment], None] | bool | None) -> Iterator[Tell]:
    """The user's own function, or a bar."""
    if callable(progress):
        yield progress
        return
    with shown(progress, "tune") as follow:
        yield (lambda moment: None) if follow is None else lambda moment: follow({"round": moment.done}, moment.total)
