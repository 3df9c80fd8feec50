"""fedloom as scikit-learn's users know models: ``fit``, ``predict``, ``score``, pipelines, searches.

    from fedloom import FederatedClassifier
    FederatedClassifier(method="fedavg").fit(X, y, groups=hospital).predict(X)

An estimator trains on all rows that it is given, as estimators do: who wants to know how good it is, splits before.
"""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from fedloom.channel import Channel
from fedloom.data import Table, federate
from fedloom.data.scaling import Scaling
from fedloom.engine.run import Run, train
from fedloom.errors import ConfigError
from fedloom.execution.work import Evaluate, Memories
from fedloom.execution.worker import Worker, asked, shown_to_all
from fedloom.experiment.sections import method_form, network_form
from fedloom.federation.data import FederatedData
from fedloom.federation.model import Model
from fedloom.federation.networks import build_model
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.federation.scale import Scale
from fedloom.methods import Method, method_of, name_of
from fedloom.methods.given import made, split_name
from fedloom.methods.statistics import with_statistics
from fedloom.register import hint
from fedloom.storage.store import open_latest
from fedloom.types import Vector

Array = npt.NDArray[Any]
_NESTED = {"method": "method_params", "model": "model_params"}
"""Parameters that have parameters of their own, ``method__lr``, and where these are kept."""
_OURS = ("problem", "method", "rounds", "seed", "select", "evaluate", "executor", "progress", "out")
_NUMBERS = 4_000_000  # that go through the model at a time
_PROBABLE = {"auto", "binary", "cross-entropy"}


@dataclass(frozen=True, eq=False)
class Fitted:
    """What predictions need, and nothing of the training rows."""

    model: Model
    theta: Vector
    personal: Tensor | None
    """A model for each client, where the method makes such."""
    x_scale: Scale | None
    y_scale: Scale | None
    threshold: float
    method: str
    product: str

    def outputs(self, x: Array, who: npt.NDArray[np.int64] | None) -> Tensor:
        """What the model says of rows of these clients; -1, or nobody at all: the common model."""
        rows = torch.from_numpy(np.array(x))  # torch wants to be able to write
        if self.x_scale is not None:
            rows = self.x_scale.scaled(rows, torch.zeros(len(rows), dtype=torch.int64))
        rows = rows.to(self.theta.dtype)
        with torch.no_grad():
            if self.personal is None or who is None:
                return self._outputs(self.theta, rows)
            out = torch.empty(len(rows), 0)
            for client in np.unique(who).tolist():
                mine = torch.from_numpy(np.flatnonzero(who == client))
                said = self._outputs(self.theta if client < 0 else self.personal[client], rows[mine])
                out = said.new_empty(len(rows), said.shape[1]) if out.shape[1] == 0 else out
                out[mine] = said
            return out

    def _outputs(self, theta: Vector, rows: Tensor) -> Tensor:
        block = max(1, _NUMBERS // max(1, rows.shape[1]))
        return torch.cat([self.model(theta, part) for part in torch.split(rows, block)])


class _Federated(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share."""

    def __init__(
        self,
        method: str | Method = "fedavg",
        model: Any = "mlp",
        *,
        rounds: int | None = None,
        clients: int = 10,
        partition: Any = "iid",
        select: Any = None,
        scaling: str = "standard",
        loss: str = "auto",
        dtype: str = "float64",
        method_params: dict[str, Any] | None = None,
        model_params: dict[str, Any] | None = None,
        train_params: dict[str, Any] | None = None,
        executor: str = "serial",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.model = model
        self.rounds = rounds
        self.clients = clients
        self.partition = partition
        self.select = select
        self.scaling = scaling
        self.loss = loss
        self.dtype = dtype
        self.method_params = method_params
        self.model_params = model_params
        self.train_params = train_params
        self.executor = executor
        self.random_state = random_state
        self.verbose = verbose

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters by name; ``deep``: with the method's hyper-parameters and the model's options, method__lr."""
        found: dict[str, Any] = super().get_params(deep=False)
        if deep:
            for part, kept in _NESTED.items():
                given = getattr(self, kept)
                known = self._known(part) | (dict(given) if isinstance(given, Mapping) else {})
                found |= {f"{part}__{key}": value for key, value in known.items()}
        return found

    def set_params(self, **params: Any) -> _Federated:
        """Set parameters, those of the method and of the model as ``method__lr`` and ``model__hidden``."""
        plain = {key: value for key, value in params.items() if "__" not in key}
        super().set_params(**plain)
        for key in params.keys() - plain.keys():
            part, _, inner = key.partition("__")
            if part not in _NESTED:
                raise ValueError(f"{part!r} has no parameters of its own; those of method and model have: method__lr")
            known = self._known(part)
            if known and inner not in known:
                raise ValueError(f"the {part} {getattr(self, part)!r} has no parameter {inner!r}; {hint(inner, known)}")
            setattr(self, _NESTED[part], {**self._given(_NESTED[part]), inner: params[key]})
        return self

    def _given(self, name: str) -> dict[str, Any]:
        """A parameter that is a dict of further ones, or none."""
        value = getattr(self, name)
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{name} = {value!r} cannot be; give a dict, such as {{'lr': 0.1}}, or None")
        return dict(value or {})

    def _known(self, part: str) -> dict[str, Any]:
        """The parameters of method or model with the values that they have by themselves; nothing where unknown."""
        given = getattr(self, part)
        if isinstance(given, Method):
            return {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}  # type: ignore[arg-type]
        if not isinstance(given, str):
            return {}
        try:
            form = method_form(split_name(given)[0]) if part == "method" else network_form(given)
        except ConfigError:  # ``fit`` says what is wrong with it
            return {}
        return {name: field.default for name, field in form.fields.items() if field.default is not ...}

    def _method(self) -> Method:
        """The method with its hyper-parameters."""
        base = method_of(self.method)
        if base.layout == "features":
            raise ConfigError(
                f"{name_of(base)} is for clients that hold columns of the same rows, but those of an estimator hold "
                "rows; choose another method, such as 'fedavg', or use fedloom.train"
            )
        return made(type(base), name_of(base), self._given("method_params"), base)

    def _fit(self, x: Array, y: Tensor, task: Any, classes: tuple[str, ...], groups: Any) -> None:
        """Train on all rows, which their groups own, or which are dealt to clients."""
        method, seed = self._method(), self._seed()
        further = self._given("train_params")
        for key in further:
            if key in _OURS:
                raise ConfigError(f"train_params has {key!r}, which is a parameter of its own, or follows from others")
        owner, names = (None, None) if groups is None else self._owners(groups, len(x))
        table = Table(
            "rows",
            torch.from_numpy(np.array(x, dtype=np.float64)),
            y,
            task,
            classes,
            groups=None if owner is None else torch.from_numpy(owner),
            group_names=None if names is None else tuple(map(str, names)),
            scaling=Scaling(self.scaling),  # type: ignore[arg-type]
        )
        if owner is not None:
            data = federate(table, partition="natural", test=0.0, seed=seed)
        else:
            data = federate(table, clients=self._dealt(len(x)), partition=self.partition, test=0.0, seed=seed)
        dtype = {"float32": torch.float32, "float64": torch.float64}.get(self.dtype)
        if dtype is None:
            raise ConfigError(f"dtype = {self.dtype!r} cannot be; choose float32 or float64")
        model = self._model(data)
        problem = Problem(data, model, self.loss, dtype)
        how = dict(rounds=self.rounds, seed=seed, select=self.select, evaluate=[], executor=self.executor, **further)
        product = method.evaluates
        with tempfile.TemporaryDirectory(prefix="fedloom-") as folder:
            kept = None if product == "global" else Path(folder) / "run"
            run = train(problem, method, progress=None if self.verbose else False, out=kept, **how)
            personal = None if kept is None else _personal(problem, method, run, kept, product)
        self.run_ = dataclasses.replace(run, history=list(run.history), folder=None)
        self.clients_ = np.arange(data.clients) if names is None else names
        self._fitted = Fitted(
            model,
            run.theta.clone(),
            personal if names is not None else None,
            data.x_scale,
            data.y_scale,
            problem.loss.threshold,
            name_of(method),
            product,
        )

    def _model(self, data: FederatedData) -> Model:
        if isinstance(self.model, Model):
            return self.model
        if not (isinstance(self.model, str) or callable(self.model)):
            raise ConfigError(f"model = {self.model!r} cannot be; give a network's name, such as 'mlp', or a module")
        return build_model(self.model, data, **self._given("model_params"))

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _owners(self, groups: Any, rows: int) -> tuple[npt.NDArray[np.int64], Array]:
        given = column_or_1d(groups)
        if len(given) != rows:
            check_consistent_length(np.empty(rows), given)
        names, owner = np.unique(given.astype(str) if given.dtype.kind == "O" else given, return_inverse=True)
        return owner.astype(np.int64), names

    def _dealt(self, rows: int) -> int:
        """To how many clients the rows are dealt: fewer than asked for where there are not so many rows."""
        if rows >= self.clients:
            return self.clients
        warnings.warn(
            f"{rows} rows cannot be dealt to {self.clients} clients: {rows} clients have one each", stacklevel=4
        )
        return rows

    def _outputs(self, X: Any, groups: Any) -> Tensor:
        """What the model says of each row, in the units of the targets."""
        check_is_fitted(self)
        x, fitted, who = validate_data(self, X, reset=False, dtype=np.float64), self._fitted, None
        if groups is not None:
            given, names = self._owners(groups, len(x))
            known = {name: number for number, name in enumerate(self.clients_.tolist())}
            who = np.array([known.get(name, -1) for name in names.tolist()], dtype=np.int64)[given]
        if fitted.product != "global":
            self._refuse_strangers(who)
        out = fitted.outputs(x, who).double()
        if fitted.y_scale is not None:
            out = fitted.y_scale.original(out, torch.zeros(len(out), dtype=torch.int64))
        return out

    def _refuse_strangers(self, who: npt.NDArray[np.int64] | None) -> None:
        """Of a method that makes a model for each client, rows of nobody known have no model, or the one before all."""
        fitted = self._fitted
        if fitted.personal is not None and who is not None and (who >= 0).all():
            return
        whose = "it was fitted without groups" if fitted.personal is None else "say whose rows these are: groups=…"
        if fitted.product == "personal":
            if fitted.personal is not None and who is not None:
                whose = "some of these groups were not there when it was fitted"
            raise ConfigError(f"{fitted.method} has a model for each client and none for others; {whose}")
        warnings.warn(
            f"{fitted.method} makes a model that clients adapt to their rows; where the client is not known ({whose}) "
            "it is used as it is",
            stacklevel=4,
        )


def _personal(problem: Problem, method: Method, run: Run, folder: Path, product: str) -> Tensor:
    """The model of each client: its own, or the common one adapted to its training rows."""
    ids, seed = np.arange(problem.data.clients), int(run.summary["seed"])
    _, store = open_latest(folder, tidy=False)
    with store:
        columns, known = store.gather(torch.from_numpy(ids))
    worker = Worker(problem, with_statistics(method, problem.model), Channel(), seed)
    work = Evaluate(ids, int(run.summary["rounds"]), split="train", model=product, adapt_split="train")
    work = dataclasses.replace(work, memory=Memories(known, columns))
    client = problem.client(ids, Draw(seed, work.round))
    shown = shown_to_all(worker.method, run.state, product)
    return worker.models(client, shown, asked(worker.method, run.state, work)).detach().clone()


def _probable(estimator: Any) -> bool:
    if estimator.loss in _PROBABLE:
        return True
    raise AttributeError(f"the loss {estimator.loss!r} has no probabilities; choose loss='auto'")


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A federated model that classifies, as scikit-learn has models.

    * ``method``: a name ("fedavg", "fedprox:mu=0.1"), or a Method object.
    * ``model``: "linear", "mlp" or another network's name, an import path, a ``torch.nn.Module``, or what builds one.
    * ``rounds``: how many; none: the method's default.
    * ``clients``: to how many the rows are dealt where ``fit`` is given no groups; ``partition``: how.
    * ``select``: how many clients take part in a round; none: all.
    * ``scaling``: of features (and of a regression's targets) by the training rows: "standard", "min-max" or "none".
    * ``loss``: "auto" is what suits the task. ``dtype``: "float64" or "float32".
    * ``method_params``: hyper-parameters over those of ``method``, in ``set_params`` and searches ``method__lr``.
    * ``model_params``: options of a network that has a name, in ``set_params`` and searches ``model__hidden``.
    * ``train_params``: further arguments of ``fedloom.train``, such as a fleet, a channel or a schedule.
    * ``executor``: where the work is done; searches that run in parallel want "serial".
    * ``random_state``: a number gives the same model each time. ``verbose``: whether a bar shows the rounds.

    ``fit(X, y, groups=hospital)`` takes the owner of each row. Of methods that make a model for each client,
    ``predict(X, groups=hospital)`` uses the client's own. Afterwards there are ``classes_``, ``clients_``, ``run_``
    (the Run, with its history and costs), ``n_features_in_`` and, of data frames, ``feature_names_in_``.

        import numpy as np

        x, hospital = np.random.default_rng(0).normal(size=(90, 3)), np.repeat(["north", "south", "west"], 30)
        y = np.where(x[:, 0] > 0, "ill", "well")
        model = fedloom.FederatedClassifier("fedavg", rounds=10, random_state=0).fit(x, y, groups=hospital)
        print(model.predict(x[:3]), model.predict_proba(x[:3]), model.score(x, y))
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> FederatedClassifier:
        """Train on these rows; ``groups`` says who owns each of them."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"there is one class only ({self.classes_[0]!r}), and a classifier needs at least two")
        names = tuple(map(str, self.classes_))
        if len(names) == 2:
            self._fit(X, torch.from_numpy(codes.astype(np.float64)[:, None]), "binary", names, groups)
        else:
            self._fit(X, torch.from_numpy(codes.astype(np.int64)), "classification", names, groups)
        return self

    def decision_function(self, X: Any, groups: Any = None) -> Array:
        """How sure the model is: of two classes a number above 0 for the second one, else one for each class."""
        out = self._outputs(X, groups).numpy()
        return out[:, 0] - self._fitted.threshold if out.shape[1] == 1 else out

    def predict(self, X: Any, groups: Any = None) -> Array:
        """The class of each row."""
        sure = self.decision_function(X, groups)
        found: Array = self.classes_[(sure > 0).astype(np.int64) if sure.ndim == 1 else sure.argmax(1)]
        return found

    @available_if(_probable)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any, groups: Any = None) -> Array:
        """The probability of each class, in the order of ``classes_``."""
        out = self._outputs(X, groups)
        if out.shape[1] > 1:
            return torch.softmax(out, 1).numpy()
        second = torch.sigmoid(out)
        return torch.cat([1 - second, second], 1).numpy()

    @available_if(_probable)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any, groups: Any = None) -> Array:
        """The logarithm of the probability of each class."""
        out = self._outputs(X, groups)
        if out.shape[1] == 1:
            out = torch.cat([torch.zeros_like(out), out], 1)
        return torch.log_softmax(out, 1).numpy()


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A federated model that predicts numbers, as scikit-learn has models: one target, or several as columns of y.

    ``method``, ``model``, ``rounds``, ``clients``, ``partition``, ``select``, ``scaling``, ``loss``, ``dtype``,
    ``method_params``, ``model_params``, ``train_params``, ``executor``, ``random_state`` and ``verbose`` are those of
    FederatedClassifier, as is what ``fit`` and ``predict`` take. Predictions are in the units of the targets.

        import numpy as np

        x, farm = np.random.default_rng(0).normal(size=(90, 3)), np.repeat([7, 8, 9], 30)
        y = 5 * x[:, 0]
        model = fedloom.FederatedRegressor("fedavg", "linear", rounds=10, random_state=0).fit(x, y, groups=farm)
        print(model.predict(x[:3]), model.score(x, y))
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> FederatedRegressor:
        """Train on these rows; ``groups`` says who owns each of them."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, multi_output=True, ensure_min_samples=2)
        targets = np.array(y, dtype=np.float64)
        self._targets_ndim = targets.ndim
        self._fit(X, torch.from_numpy(targets.reshape(len(targets), -1)), "regression", (), groups)
        return self

    def predict(self, X: Any, groups: Any = None) -> Array:
        """The targets of each row."""
        out: Array = self._outputs(X, groups).numpy()
        return out[:, 0] if self._targets_ndim == 1 else out

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
