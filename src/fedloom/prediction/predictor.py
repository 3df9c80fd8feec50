"""A trained model in use: it is read from a folder, without the training data, and says what it makes of new rows."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from fedloom.channel import parted
from fedloom.errors import ConfigError, FedloomError, RunError
from fedloom.federation.data import FederatedData
from fedloom.federation.model import Model, check_fit
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw
from fedloom.methods import Method, lookup
from fedloom.methods.method import shown_to
from fedloom.methods.statistics import with_statistics
from fedloom.prediction.answers import SHARE, Array, answers, output_names
from fedloom.prediction.card import ModelCard
from fedloom.prediction.parts import party
from fedloom.prediction.rows import Tally, columns_of, read_rows
from fedloom.storage.belonging import changed, sha256_of_file
from fedloom.storage.files import guarded
from fedloom.storage.folder import CARD, CONFIG, FLEET, SCALES, SUMMARY, RunFolder
from fedloom.storage.saved import SavedModel, open_saved, refuse_other_model, shapes_of
from fedloom.storage.signature import stranger
from fedloom.trust import doubting
from fedloom.types import Vector

if TYPE_CHECKING:
    import pandas as pd

ADAPTED, WEIGHTS = "adapted.json", "model.safetensors"
"""Of a folder of ``fedloom adapt``: what the model is, and its tensors by name."""
_NUMBERS = 2_000_000  # of rows that one forward pass reads at a time …
_ROWS = 50_000  # … and at most so many rows
_SHOWN = 8


@dataclass(frozen=True, eq=False)
class Predictor:
    """A trained model, ready for new rows that have no labels.

    ``Predictor.open`` reads one from a folder; ``Run.predict`` has one of its own. Columns are read, filled and scaled
    as in the training, and predictions come with the names of the classes, or in the units of the targets.

        data = fedloom.federate("digits", clients=5)
        problem = fedloom.Problem(data, fedloom.build_model("linear", data))
        fedloom.train(problem, fedloom.FedAvg(), rounds=2, out="trained")
        predictor = fedloom.Predictor.open("trained")
        print(predictor.predict(data.x[:3])["prediction"])
    """

    card: ModelCard
    """How rows are read and what outputs mean."""
    model: Model
    """The network …"""
    theta: Vector
    """… and its parameters."""
    bias: Tensor | None = None
    """Of a model that reads one party's columns alone, and gives its share of the outputs: what the server adds to the
    sum of all shares. None: it is a whole model."""
    client: str | None = None
    """Whose model it is, or whose rows it reads; none: that of all."""
    decision: float | None = None
    """The probability from which on a row is taken for a 1; none: the likelier class."""
    notes: tuple[str, ...] = ()
    """What does not fit in its folder, and what its user should know of the model."""

    @staticmethod
    def open(
        folder: str | Path,
        client: int | str | None = None,
        *,
        module: nn.Module | None = None,
        method: Method | None = None,
        trust: bool = False,
    ) -> Predictor:
        """The model in the folder of a run, or in one that ``adapt`` has made.

        * ``client``: whose model, where the method makes one for each client; whose rows, where each client's were
          scaled by its own; whose columns, where clients hold columns of the same rows. None: the server's.
        * ``module``: the network, for a run whose network was made in Python, which its folder does not tell.
        * ``method``: the method, for a run of a method of your own that was made in Python.
        * ``trust``: import what the folder names by its path ("module:attribute"), though you have not signed it.

        What does not fit in the folder is said as a warning.
        """
        place = Path(folder)
        if (place / ADAPTED).is_file():
            return _adapted(place, client, module, trust)
        saved = open_saved(place)
        card = _read_card(saved.folder)
        with _trusting(saved.folder, trust):
            model = _network(card, module)
            refuse_other_model(f"the model in {saved.folder}", saved.shapes, shapes_of(model))
            found = _product(saved, card, model, method, client)
        notes = (*saved.notes, *_unfinished(saved), *found.notes)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return replace(found, decision=decision_of(_summary(saved.folder)), notes=notes)

    def for_all(self) -> Predictor:
        """The same for rows of anybody; a ConfigError where there is none but for a client."""
        facts = self.card.facts
        if facts.product == "personal":
            raise ConfigError(
                f"{facts.method} makes a model for each client, and none for all: say whose with --client NAME (in "
                f"Python: client=…); {_clients(self.card)}"
            )
        if self.card.own_scales:
            raise ConfigError(
                "each client's rows were scaled by its own training rows: say whose rows these are with --client NAME "
                f"(in Python: client=…); {_clients(self.card)}. For a new client, see `fedloom adapt`"
            )
        return replace(self, card=self.card.for_all())

    def rows(self, x: object, where: str = "x", tally: Tally | None = None) -> Tensor:
        """Rows as the network reads them: encoded, filled, scaled.

        ``tally`` takes in what is to be said of them; none: it is said as a warning.
        """
        heard = Tally() if tally is None else tally
        found = read_rows(self.card, columns_of(x), where, heard)
        for line in heard.lines() if tally is None else ():
            warnings.warn(line, stacklevel=3)
        return found

    def outputs(self, rows: Tensor) -> Tensor:
        """The outputs for rows as the network reads them; targets of a regression in their own units."""
        block = min(_ROWS, max(1, _NUMBERS // max(1, rows[:1].numel())))
        with torch.no_grad():
            parts = [self.model(self.theta, part) for part in torch.split(rows, block) if len(part)]
        out = torch.cat(parts) if parts else rows.new_zeros(0, self.card.facts.outputs)
        scale = self.card.y_scale
        if scale is None or self.bias is not None:
            return out
        return scale.original(out, torch.zeros(len(out), dtype=torch.int64))

    def answers(self, given: object, where: str = "x", tally: Tally | None = None) -> dict[str, Array]:
        """The columns of ``predict``, by name."""
        out = self.outputs(self.rows(given, where, tally))
        if self.bias is not None:
            return {SHARE.format(name): out[:, k].numpy() for k, name in enumerate(output_names(self.card.facts))}
        return answers(self.card.facts, out, self.decision)

    def predict(self, x: object) -> pd.DataFrame:
        """What the model says of each row.

        * ``x``: a data frame, or a dict of columns, with the columns that the model was trained on, in any order and in
          the units of the training data; or an array with the numbers of each row.

        The result has "prediction" and "probability of CLASS" for each class; of several labels "prediction of LABEL"
        and "probability of LABEL"; of a regression "prediction of TARGET", in its own units.
        """
        import pandas

        index = getattr(x, "index", None)
        return pandas.DataFrame(self.answers(x), index=index if isinstance(index, pandas.Index) else None)

    def module(self) -> nn.Module:
        """The network as a plain ``torch.nn.Module`` with these parameters, for rows that are encoded and scaled."""
        module = self.model.built().to(self.theta.dtype).eval()
        with torch.no_grad():
            for name, value in self.model.views(self.theta).items():
                (module.get_buffer if name in self.model.statistics else module.get_parameter)(name).copy_(value)
        return module


def _read_card(folder: Path) -> ModelCard:
    """The card of a run; one that was changed since the run wrote it is refused: it would read rows in another way."""
    for name in changed(folder):
        if name in (CARD, SCALES):
            raise RunError(
                f"{folder / name} is not as the run wrote it, so rows might be read in another way than in the "
                f"training. Put it back; or remove it, and `fedloom resume {folder}` writes it again"
            )
    return ModelCard.read(folder)


def _network(card: ModelCard, module: nn.Module | None) -> Model:
    if module is not None:
        model = Model(lambda: copy.deepcopy(module))
    else:
        recipe = card.recipe()
        recipe.refuse_larger()
        model = Model(recipe)
    refuse_other_model(f"the model of {CARD}", card.facts.tensors, shapes_of(model))
    check_fit(model, torch.zeros(2, *card.facts.shape, dtype=card.dtype), card.facts.outputs, card.dtype)
    return model


def _product(
    saved: SavedModel, card: ModelCard, model: Model, method: Method | None, client: int | str | None
) -> Predictor:
    """The server's model, a client's own, or a party's part."""
    saved.refuse_other_numbers(card.dtype, CARD)
    notes = _before_adaptation(card, saved.folder)
    if client is None:
        return Predictor(card, model, saved.theta, notes=notes).for_all()
    number = card.number(client)
    label = card.label(number)
    if card.facts.blocks is not None:
        return Predictor(*party(card, model, saved.theta, number), client=label)
    theta = saved.theta
    if card.facts.product == "personal":
        theta = _own(saved, card, model, method, number)
    return Predictor(card.for_client(number), model, theta, client=label, notes=notes)


def _own(saved: SavedModel, card: ModelCard, model: Model, method: Method | None, client: int) -> Vector:
    """A client's own model, which follows from what it remembers."""
    label = card.label(client)
    if (saved.folder / FLEET).is_file():
        raise RunError(
            f"the model of client {label} is on its node: on real devices what clients remember never leaves them"
        )
    config = RunFolder(saved.folder, None).read_toml(CONFIG)
    method = with_statistics(method or _method(config.get("method"), saved.folder), model)
    problem = Problem(_blank(card), model, dtype=card.dtype)
    with saved.memory() as store:
        memory, known = store.gather(torch.tensor([client]))
    if not bool(known.all()):
        raise RunError(
            f"client {label} never took part in the run: it has no model of its own. Take another client, or make one "
            f"of a few rows of its: `fedloom adapt {saved.folder} --client {label}`"
        )
    ids = np.array([client])
    try:
        owner = problem.client(ids, Draw(0, saved.round))
        theta = method.personal(owner, shown_to(method, owner, saved.state), parted(memory)[0])
        return theta.expand(1, -1)[0].detach().clone()
    except FedloomError:
        raise
    except Exception as error:  # what the method finds in a damaged folder may be anything
        raise RunError(f"the model of client {label} cannot be made from what {saved.folder} has: {error!r}") from error


def _method(table: Any, folder: Path) -> Method:
    """The method that a run's settings describe."""
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise RunError(f"{folder / CONFIG} does not say which method it was; restore it from a copy")
    try:
        cls = lookup(table["name"]).cls
    except ConfigError as error:
        raise ConfigError(f"{error} (the method of {folder}; in Python give it: method=…)") from error
    kinds = get_type_hints(cls)
    given = {}
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name in table:
            value = table[field.name]
            nothing = value == "none" and NoneType in get_args(kinds[field.name])
            inner = isinstance(value, Mapping) and isinstance(kinds[field.name], type)
            given[field.name] = None if nothing else _method(value, folder) if inner else value
    try:
        return cls(**given)
    except TypeError as error:
        raise RunError(f"{folder / CONFIG} does not describe a {table['name']}: {error}") from error


def _blank(card: ModelCard) -> FederatedData:
    """A federation of these clients, none of whom has a row here."""
    facts = card.facts
    y = torch.zeros(2, dtype=torch.int64) if facts.task == "classification" else torch.zeros(2, facts.outputs)
    nobody = Ragged.contiguous(torch.zeros(facts.clients, dtype=torch.int64))
    splits = dict.fromkeys(("train", "test"), nobody)
    return FederatedData(
        facts.data, torch.zeros(2, *facts.shape), y, facts.task, splits, facts.classes, names=facts.names
    )


def _adapted(folder: Path, client: int | str | None, module: nn.Module | None, trust: bool) -> Predictor:
    """The model in a folder that ``adapt`` has made."""
    again = "Put it back, or adapt the model again"
    record = RunFolder(folder, None).read_json(ADAPTED)
    label, told = (str(record.get("client")), record.get("files")) if isinstance(record, dict) else ("", None)
    if not isinstance(told, dict):
        raise RunError(
            f"{folder / ADAPTED} does not say how rows are read: it is damaged, or an older fedloom wrote it. {again}"
        )
    if client is not None and str(client) != label:
        raise ConfigError(f"{folder} has the model of client {label} and no other; leave the client away")
    for name in (CARD, SCALES, WEIGHTS):
        if sha256_of_file(folder / name) != told.get(name):
            raise RunError(f"{folder / name} is not what {ADAPTED} says. {again}")
    card = ModelCard.read(folder)
    with _trusting(folder, trust):
        model = _network(card, module)
    with guarded(folder / WEIGHTS):
        content = (folder / WEIGHTS).read_bytes()
    try:
        tensors = safetensors.torch.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise RunError(f"{folder / WEIGHTS} is damaged ({error}). {again}") from None
    ordered = [
        *(name for name in model.tensors if name in tensors),
        *(name for name in tensors if name not in model.tensors),
    ]
    shapes = {name: tuple(tensors[name].shape) for name in ordered}
    refuse_other_model(f"the model in {folder}", shapes, shapes_of(model))
    theta = torch.cat([tensors[name].reshape(-1) for name in model.tensors]).to(card.dtype)
    return Predictor(card, model, theta, client=label, decision=decision_of(record))


def _trusting(folder: Path, trust: bool) -> AbstractContextManager[None]:
    """While a network or a method is looked up: of code only that is imported which config.toml names, and that only if
    the user has signed it; what model.json names beside it nobody has signed."""
    if trust:
        return nullcontext()
    why = stranger(folder)
    if why is not None:
        return doubting(folder, why)
    config = RunFolder(folder, None).read_toml(CONFIG)
    return doubting(folder, f"its {CONFIG}, which you signed, does not name it", [config])


def decision_of(summary: Any) -> float | None:
    """The threshold that was chosen in a run, if one was."""
    chosen = summary.get("decision") if isinstance(summary, Mapping) else None
    threshold = chosen.get("threshold") if isinstance(chosen, Mapping) else None
    if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, int | float)):
        raise RunError(f"the folder is damaged: its decision has the threshold {threshold!r}")
    return threshold


def _summary(folder: Path) -> Any:
    return RunFolder(folder, None).read_json(SUMMARY) if (folder / SUMMARY).is_file() else None


def _unfinished(saved: SavedModel) -> list[str]:
    return [] if saved.finished else [f"the run is not finished: the model is that after round {saved.round}"]


def _before_adaptation(card: ModelCard, folder: Path) -> tuple[str, ...]:
    if card.facts.product != "adapted":
        return ()
    return (
        f"{card.facts.method} makes a model to be adapted to a client's rows, and this is the one before that: "
        f"`fedloom adapt {folder} --client NAME` adapts it, into a folder that predicts too",
    )


def _clients(card: ModelCard) -> str:
    names = card.facts.names
    if names is None:
        return f"they are 0 to {card.facts.clients - 1}"
    return f"they are {', '.join(names[:_SHOWN])}" + (f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN))
