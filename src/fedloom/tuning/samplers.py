"""Which trials there are: points of a space, by counter or by optuna's samplers, the same ones whenever asked again."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import count, islice, product
from typing import Any

import torch

from fedloom.errors import ConfigError
from fedloom.federation.randomness import Draw
from fedloom.register import hint
from fedloom.tuning.spaces import Space, Values

BY_COUNTER = ("sobol", "random", "grid")
_OPTUNA = {"tpe": "TPESampler", "gp": "GPSampler", "cmaes": "CmaEsSampler"}
SAMPLERS = (*BY_COUNTER, *_OPTUNA)
_PATIENCE = 200
"""So many points in a row that were there before: the space has no others."""


def check_sampler(name: str) -> None:
    """A ConfigError where there is no such sampler, or what it needs is not installed."""
    if name not in SAMPLERS:
        raise ConfigError(f"there is no sampler {name!r}; {hint(name, SAMPLERS)}")
    if name in _OPTUNA:
        _optuna(name)


def points(name: str, space: Space, default: Values, number: int, seed: int, label: str) -> list[Values]:
    """At most so many trials, each different from all others and from the defaults; the same ones for the same seed.

    * ``label``: the method's, so that methods do not share their points.
    """
    if not space or number < 1:
        return []
    found = _grid(space, number) if name == "grid" else _drawn(name, space, number, Draw(seed), label)
    return list(islice(_different(found, default), number))


def grid_size(space: Space) -> int | None:
    """How many points a grid has, if it is of choices alone."""
    return math.prod(len(one.choices) for one in space.values()) if all(s.choices for s in space.values()) else None


def _drawn(name: str, space: Space, number: int, draw: Draw, label: str) -> Iterator[Values]:
    purpose = f"trials of {label}"
    if name == "random":
        shares: Iterable[Any] = (draw.uniform(purpose, at, len(space)) for at in count())
    else:
        engine = torch.quasirandom.SobolEngine(len(space), scramble=True, seed=draw.key(purpose) >> 1)  # type: ignore[no-untyped-call]
        shares = (engine.draw(1, dtype=torch.float64)[0].tolist() for _ in count())
    return ({key: one.at(float(u)) for (key, one), u in zip(space.items(), us, strict=True)} for us in shares)


def _grid(space: Space, number: int) -> Iterator[Values]:
    """The finest grid with at most so many points; one of choices that has more is taken at equal distances."""
    width = 1
    while math.prod(len(one.spaced(width + 1)) for one in space.values()) <= number and width < number:
        width += 1
    every = [dict(zip(space, values, strict=True)) for values in product(*(s.spaced(width) for s in space.values()))]
    kept = min(number, len(every))
    return (every[at * len(every) // kept] for at in range(kept))


def _different(found: Iterable[Values], default: Values) -> Iterator[Values]:
    seen, missed = [default], 0
    for values in found:
        missed = missed + 1 if values in seen else 0
        if missed > _PATIENCE:
            return
        if not missed:
            seen.append(values)
            yield values


class Sampler(ABC):
    """Says trial by trial what is to be tried, in the knowledge of what came of those before."""

    @abstractmethod
    def ask(self) -> Values:
        """The values of the next trial."""

    @abstractmethod
    def tell(self, value: float | None) -> None:
        """What came of it after its first rung; None: it was lost."""


class Listed(Sampler):
    """Trials that were all known at the start."""

    def __init__(self, trials: list[Values]) -> None:
        self._left = iter(trials)

    def ask(self) -> Values:
        return next(self._left)

    def tell(self, value: float | None) -> None:
        """It makes no difference."""


class Optuna(Sampler):
    """One of optuna's samplers, seeded, told in the order of the trials: asked again, it says the same again."""

    def __init__(self, name: str, space: Space, default: Values, seed: int, label: str, higher: bool) -> None:
        optuna = _optuna(name)
        sampler = getattr(optuna.samplers, _OPTUNA[name])(seed=Draw(seed).key(f"trials of {label}") % 2**31)
        self.study = optuna.create_study(sampler=sampler, direction="maximize" if higher else "minimize")
        self.space, self.default, self.fail = space, default, optuna.trial.TrialState.FAIL
        self.add, self.distributions = (
            optuna.trial.create_trial,
            {k: _distribution(optuna, s) for k, s in space.items()},
        )
        self.trial: Any = None

    def begin(self, value: float | None) -> None:
        """What came of the defaults, where they are in the space."""
        inside = all(key in self.default and _inside(self.default[key], search) for key, search in self.space.items())
        if value is not None and inside:
            trial = self.add(params=self.default, distributions=self.distributions, value=value)
            self.study.add_trial(trial)

    def ask(self) -> Values:
        self.trial = self.study.ask(self.distributions)
        found = self.trial.params
        return {
            key: found[key] if search.choices or search.whole else search.rounded(found[key])
            for key, search in self.space.items()
        }

    def tell(self, value: float | None) -> None:
        if value is None:
            self.study.tell(self.trial, state=self.fail)
        else:
            self.study.tell(self.trial, value)


def _inside(value: Any, search: Any) -> bool:
    if search.choices:
        return value in search.choices
    return isinstance(value, int | float) and not isinstance(value, bool) and search.low <= value <= search.high


def _distribution(optuna: Any, search: Any) -> Any:
    kinds = optuna.distributions
    if search.choices:
        for value in search.choices:
            if not isinstance(value, None | bool | int | float | str):
                raise ConfigError(f"optuna's samplers cannot choose among {search}: take sobol, random or grid")
        return kinds.CategoricalDistribution(search.choices)
    if search.whole:
        return kinds.IntDistribution(search.low, search.high, log=search.log)
    return kinds.FloatDistribution(float(search.low), float(search.high), log=search.log)


def _optuna(name: str) -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            f"the sampler {name!r} is optuna's, which is not installed: pip install 'fedloom[tune]', or take "
            f"{', '.join(BY_COUNTER[:-1])} or {BY_COUNTER[-1]}"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if name == "cmaes" and find_spec("cmaes") is None:
        raise ConfigError("the sampler 'cmaes' also needs the package cmaes: pip install cmaes")
    return optuna
