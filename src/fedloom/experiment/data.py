"""The [data] section: which table, who gets which of its rows, and how each client's rows are split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval

from fedloom.data import SOURCES, STEPS, Table, default_partition, load, load_file
from fedloom.data.federate import Divided, divide
from fedloom.data.folds import TEST, Fold
from fedloom.data.paths import common_name, found_files, is_columns, is_pattern
from fedloom.data.table import against_rest, class_number
from fedloom.experiment.faults import Faults
from fedloom.experiment.forms import Form, spoken
from fedloom.federation.augment import Augment
from fedloom.federation.data import FederatedData
from fedloom.methods import REGISTER
from fedloom.types import Count, Fraction

Share = Annotated[float, Interval(ge=0, lt=1)]
VALIDATION = 0.2
"""The share of a client's rows that are not for its test by which something is chosen, unless a share is given."""
_BY_LABEL = {"classes", "dirichlet"}


@dataclass(frozen=True)
class Division:
    """What every data set can be asked: how many clients, and what is kept for what."""

    clients: Count | None = None
    """How many clients; none: 20, or all that the data come with."""
    partition: Sequence[str] | None = None
    """Who owns which rows; several names combine. None: the data's own clients where there are any, else iid."""
    seed: int | None = None
    """The seed of the partition and of made data; none: the experiment's."""
    test: Share | Literal["published"] = TEST
    """The share of each client's rows for its test, or "published": the publisher's test rows."""
    validation: Share | None = None
    """The share of each client's other rows that is kept out of training, to choose by. None: 0.2 where something is
    chosen, else no such rows; 0: what is to be chosen is chosen by the test rows."""
    support: Fraction | None = 0.5
    """The share of the train (and of the validation and test) rows for adaptation; none: no such splits."""
    target: Share = 0.0
    """The share of clients that never train and are there to be evaluated on."""
    folds: int | str | None = None
    """Cross-validation: 5 folds of each client's rows, each the test once; "clients": each client is left out of
    training once and tested, "clients:5": in five groups. None: the share ``test`` is tested."""
    fold: Count | None = None
    """Which of the folds is tested; none: `fedloom run` and `fedloom compare` make a run for each."""
    source_classes: Sequence[int | str] | None = None
    """The classes that training clients may hold; none: all."""
    target_classes: Sequence[int | str] | None = None
    """The classes that target clients may hold; none: all."""
    positive: int | str | None = None
    """Of several classes this one, by name or number, against the rest, as a binary task; partitions and splits by
    label then see these two. None: the classes as they are."""
    chronological: bool | None = None
    """Test on each client's last rows rather than on a random sample; none: so for data that are series."""
    public: Annotated[float, Interval(gt=0, lt=1)] | None = None
    """The share of all clients' training rows that every client gets beside its own; their owners' rows are then known
    to all. None: nothing is shared."""
    fill: bool = False
    """Whether each client trains on as many rows of every label that it has as of its most frequent one; rows of rarer
    labels come again."""
    augment: str | None = None
    """How images of mini-batches are changed: "flip", "crop", "flip,crop", or with numbers "flip:0.5,crop:4". None: not
    at all."""

    @property
    def leaves_out(self) -> bool:
        """Whether the folds are of clients, which are then all that is tested."""
        return isinstance(self.folds, str)


@dataclass(frozen=True)
class DataPlan:
    """A data set and its division, checked as far as that goes without the rows."""

    name: str
    path: Path | tuple[Path, ...] | None
    """A file, a folder or a pattern, or several of these; none: a data set that has a name."""
    options: dict[str, Any]
    """Of the function that loads the table."""
    steps: dict[str, Any]
    """Of the partition's steps."""
    division: Division

    def load(self, seed: int) -> Table:
        """The table, before anybody owns its rows."""
        arguments = self.arguments(seed)
        return load(self.name, **arguments) if self.path is None else load_file(self.path, name=self.name, **arguments)

    def arguments(self, seed: int) -> dict[str, Any]:
        """What the table depends on: its options, and for data that are made on the spot the seed and the clients."""
        made = {"seed": self._seed(seed), "clients": self.division.clients} if self.path is None else {}
        return self.options | {key: value for key, value in made.items() if key in self._known and value is not None}

    @property
    def _known(self) -> Sequence[str]:
        """The options of the function that loads the table; of a file none of those that are of interest here."""
        return SOURCES.find(self.name).options if self.path is None else ()

    def federate(self, table: Table, seed: int, like: FederatedData | None = None) -> FederatedData:
        """Each client's rows, split, and scaled by those for training; or scaled ``like`` other data were."""
        return self.divide(table, seed).federated(like)

    def divide(self, table: Table, seed: int) -> Divided:
        """Each client's rows, split, before they are scaled."""
        chosen = vars(self.division) | {"seed": self._seed(seed)}
        if self.division.clients is None and "clients" in self._known and table.groups is not None:
            chosen["clients"] = int(table.groups.max()) + 1  # rows that were made for so many are dealt to so many
        return divide(table, **chosen, **self.steps)

    def choosing(self) -> DataPlan:
        """The same where something is chosen: with validation rows, unless the user said how many."""
        if self.division.validation is not None:
            return self
        return replace(self, division=replace(self.division, validation=VALIDATION))

    def check(self, table: Table, faults: Faults) -> None:
        """What the rows do not allow, said of the key that asks for it; the partition itself checks the rest."""
        d, steps = self.division, self._steps(table)
        if d.positive is not None:
            with faults.collecting(("data", "positive")):
                table = against_rest(table, d.positive)
        if d.clients is not None and d.clients > len(table):
            faults.add(("data", "clients"), f"cannot be: the data have {len(table)} rows")
        if table.labels is None and _BY_LABEL & set(steps):
            faults.add(
                ("data", "partition"), f"needs a class for each row, but this is a {table.task} task; use iid or time"
            )
        if table.groups is None and "natural" in steps:
            faults.add(("data", "partition"), "cannot be: these data come without clients of their own")
        if "classes" in steps and table.labels is not None:
            present = int((table.labels.bincount() > 0).sum())
            if not 1 <= self.steps.get("classes_per_client", 2) <= present:
                faults.add(
                    ("data", "classes_per_client"), f"cannot be: the data have {present} classes; choose 1 to {present}"
                )
        for key, classes in (("source_classes", d.source_classes), ("target_classes", d.target_classes)):
            for label in classes or ():
                with faults.collecting(("data", key)):
                    class_number(table.classes, label)
        if d.augment is not None:
            with faults.collecting(("data", "augment")):
                Augment.parse(d.augment, tuple(table.x.shape[1:]))
        if d.fill and table.labels is None:
            faults.add(("data", "fill"), f"needs a class for each row, but this is a {table.task} task; leave it out")
        if d.test == "published" and table.published_split is None:
            faults.add(("data", "test"), "cannot be: these data have no published test rows; give a share, such as 0.2")

    def resolved(self, table: Table, data: FederatedData) -> dict[str, Any]:
        """The whole section as it would have to be written to get exactly these data."""
        steps = self._steps(table)
        partition = steps[0] if len(steps) == 1 else list(steps)
        source = {"name": self.name} | ({} if self.path is None else {"path": _written(self.path)})
        order = table.series if self.division.chronological is None else self.division.chronological
        values = vars(self.division) | {"clients": data.clients, "partition": partition, "chronological": order}
        return (
            source
            | spoken(self.options | self._scaling(), _loader_form(self.name, self.path))
            | spoken(values, DIVISION)
            | spoken(self.steps, _steps_form(steps))
        )

    def _scaling(self) -> dict[str, Any]:
        """What "auto" means for a file, which is recorded: a later fedloom may mean something else by it."""
        if self.path is None or self.options.get("scaling") != "auto":
            return {}
        scaled = is_columns(self.path) and not self.options.get("standardise")
        return {"scaling": "standard" if scaled else "none"}

    def _seed(self, seed: int) -> int:
        return seed if self.division.seed is None else self.division.seed

    def _steps(self, table: Table) -> tuple[str, ...]:
        return tuple(self.division.partition or (default_partition(table),))


DIVISION = Form.of(Division, "the data")


def read_data(faults: Faults) -> DataPlan | None:
    """The plan that the [data] section makes; None when something is wrong with it."""
    values = faults.table(("data",))
    name, path = values.get("name"), values.get("path")
    no_texts = [] if isinstance(name, str | None) else ["name"]
    if not (path is None or isinstance(path, str) or _are_texts(path)):
        no_texts.append("path")
    for key in no_texts:
        faults.add(("data", key), "should be a text" + (" or a list of texts" if key == "path" else ""))
    if no_texts or (path is None and faults.find(SOURCES, name or "digits", ("data", "name")) is None):
        return None
    unknown = [step for step in _named_steps(values) if faults.find(STEPS, step, ("data", "partition")) is None]
    loader, stepped = _loader_form(name or "digits", path), _steps_form(_named_steps(values))
    form = DIVISION.joined(stepped).joined(loader)
    read, wrong = form.read({key: value for key, value in values.items() if key not in ("name", "path")})
    for key, what in wrong.items():
        home = "" if key in form.fields else _home(key, faults.settings.get(("method", "name")))
        faults.add(("data", key), home or what)
    if wrong or unknown:
        return None
    files = None if path is None else _placed(path, faults.settings.folder_of(("data", "path")))
    division = Division(**{key: read[key] for key in DIVISION.fields})
    with faults.collecting(("data", "folds"), ("data", "fold")):
        Fold.of(division.folds, division.fold, division.test, division.target)
    return DataPlan(
        name or ("digits" if files is None else common_name(files)),
        files,
        {key: read[key] for key in loader.fields if key not in stepped.fields and key not in DIVISION.fields},
        {key: read[key] for key in stepped.fields},
        division,
    )


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(isinstance(one, str) for one in value)


def _placed(path: str | list[str], folder: Path) -> Path | tuple[Path, ...]:
    """Where the files are, if relative paths start from this folder."""
    return folder / path if isinstance(path, str) else tuple(folder / one for one in path)


def _written(path: Path | tuple[Path, ...]) -> str | list[str]:
    """The files by their full paths: what a folder or a pattern holds today is what was read."""
    if isinstance(path, Path) and not path.is_dir() and not is_pattern(str(path)):
        return str(path.resolve())
    return [str(file.resolve()) for file in found_files(path)[0]]


def data_form(values: Mapping[str, Any]) -> Form:
    """The keys of a [data] section with this source and this partition."""
    loader = _loader_form(values.get("name") or "digits", values.get("path"))
    return DIVISION.joined(_steps_form(_named_steps(values))).joined(loader)


def _named_steps(values: Mapping[str, Any]) -> list[Any]:
    partition = values.get("partition") or []
    return [partition] if isinstance(partition, str) else partition if isinstance(partition, list) else []


def _home(key: str, method: Any) -> str:
    """Which partition would have such an option, and that the method has one of this name, if so."""
    homes = [name for name in STEPS if key in _steps_form([name]).fields]
    if not homes:
        return ""
    own = method in list(REGISTER) and key in Form.of(REGISTER[method].cls, "").fields
    also = f"; the method's is method.{key}, on the command line --set method.{key}=VALUE" if own else ""
    return f"is an option of partition = {' or '.join(map(repr, homes))}, which is not chosen{also}"


def _loader_form(name: str, path: object) -> Form:
    """The keys of a file, or of a source by name; none of one that does not exist."""
    if path is not None:
        return Form.of(load_file, "data from a file", skip=("path", "name", "like"))
    return Form.of(SOURCES.find(name).load, f"the data {name!r}") if SOURCES.knows(name) else Form("", {})


def _steps_form(steps: Sequence[Any]) -> Form:
    """The keys of all steps that exist."""
    form = Form("the partition", {})
    for step in filter(STEPS.knows, steps):
        form = form.joined(Form.of(STEPS.find(step), step))
    return form
