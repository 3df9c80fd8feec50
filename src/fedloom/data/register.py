"""The sources that have a name, and how to load one."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedloom.data import beijing, cifar, extrasensory, mnist, published, quadratics, shipped, synthetic
from fedloom.data.table import Table
from fedloom.errors import ConfigError
from fedloom.federation.data import Task


@dataclass(frozen=True)
class Source:
    """A data set by name: what it is, where it comes from, and the function that loads it."""

    name: str
    summary: str
    task: Task
    rows: str
    features: str
    origin: str
    licence: str
    load: Callable[..., Table]
    natural: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """The options of its loader."""
        return tuple(inspect.signature(self.load).parameters)


_SHIPPED = "ships with scikit-learn"
_LISTED = (
    Source(
        "digits",
        "handwritten digits, small enough for a first try",
        "classification",
        "1,797",
        "1x8x8",
        f"UCI Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, 1998); {_SHIPPED}",
        "CC BY 4.0",
        shipped.digits,
    ),
    Source(
        "breast-cancer",
        "malignant or benign from measurements of cell nuclei",
        "binary",
        "569",
        "30",
        f"UCI Breast Cancer Wisconsin, diagnostic (Wolberg et al., 1995); {_SHIPPED}",
        "CC BY 4.0",
        shipped.breast_cancer,
    ),
    Source(
        "diabetes",
        "progress of diabetes in a year from ten measurements",
        "regression",
        "442",
        "10",
        f"Efron, Hastie, Johnstone and Tibshirani, Least angle regression (2004); {_SHIPPED}",
        "published with the paper, no licence stated",
        shipped.diabetes,
    ),
    Source(
        "mnist",
        "handwritten digits",
        "classification",
        "60,000 + 10,000",
        "1x28x28",
        "LeCun, Cortes and Burges (1998)",
        "research use; CC BY-SA 3.0 is usually stated",
        mnist.mnist,
    ),
    Source(
        "fashion-mnist",
        "photos of garments",
        "classification",
        "60,000 + 10,000",
        "1x28x28",
        "Xiao, Rasul and Vollgraf (2017)",
        "MIT",
        mnist.fashion_mnist,
    ),
    Source(
        "qmnist",
        "MNIST's digits by their 539 writers",
        "classification",
        "60,000 (+ 10,000 by 297 others)",
        "1x28x28",
        "Yadav and Bottou (2019), with MNIST's images",
        "BSD 3-clause (labels); as mnist (images)",
        mnist.qmnist,
        natural=True,
    ),
    Source(
        "cifar10",
        "photos of ten kinds of things",
        "classification",
        "50,000 + 10,000",
        "3x32x32",
        "Krizhevsky (2009)",
        "research use, no licence stated",
        cifar.cifar10,
    ),
    Source(
        "cifar100",
        "photos of a hundred kinds of things",
        "classification",
        "50,000 + 10,000",
        "3x32x32",
        "Krizhevsky (2009)",
        "research use, no licence stated",
        cifar.cifar100,
    ),
    Source(
        "beijing-air",
        "air quality an hour ahead at 12 stations, from windows of pollutants and weather",
        "regression",
        "76,727 (12 x 35,064 hours)",
        "24x17",
        "UCI Beijing Multi-Site Air Quality (Zhang et al., 2017)",
        "CC BY 4.0",
        beijing.beijing_air,
        natural=True,
    ),
    Source(
        "extrasensory",
        "what 60 people do in each minute, from their phones and watches",
        "multilabel",
        "377,346",
        "225",
        "Vaizman, Ellis and Lanckriet (2017)",
        "CC BY-NC-SA 4.0",
        extrasensory.extrasensory,
        natural=True,
    ),
    Source(
        "synthetic",
        "synthetic(α, β): clients that differ in labelling and in features",
        "classification",
        "about 50 and a lognormal number a client",
        "60",
        "made on the spot, after Li et al., FedProx (2020)",
        "none needed",
        synthetic.synthetic,
        natural=True,
    ),
    Source(
        "quadratics",
        "least squares of clients that disagree, with a known optimum",
        "regression",
        "20 a client",
        "5",
        "made on the spot",
        "none needed",
        quadratics.quadratics,
        natural=True,
    ),
)
SOURCES: dict[str, Source] = {source.name: source for source in _LISTED}
"""Every source by its name."""

_FILES: dict[str, tuple[published.Published, ...]] = {
    "mnist": mnist.MNIST,
    "fashion-mnist": mnist.FASHION_MNIST,
    "qmnist": (*mnist.MNIST, *mnist.QMNIST),
}
_ARCHIVES: dict[str, Callable[[], Path]] = {"cifar10": cifar.cifar10_folder, "cifar100": cifar.cifar100_folder}
_MANY: dict[str, Callable[[], list[published.Member]]] = {
    "beijing-air": beijing.stations,
    "extrasensory": extrasensory.people,
}


def find(name: str) -> Source:
    """The source with this name, or a ConfigError with the nearest one."""
    if name not in SOURCES:
        near = difflib.get_close_matches(name, SOURCES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose among {', '.join(SOURCES)}, or give a file"
        raise ConfigError(f"there is no data set {name!r}; {hint}")
    return SOURCES[name]


def load(name: str, **options: object) -> Table:
    """The table of a source; ``options`` are those of its loader (:attr:`Source.options`)."""
    source = find(name)
    for option in options:
        if option not in source.options:
            near = difflib.get_close_matches(option, source.options, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(source.options) or 'none'}"
            raise ConfigError(f"the data set {name!r} has no option {option!r}; {hint}")
    return source.load(**options)


def fetch(name: str) -> list[Path]:
    """Have the published files of a source on this machine, checked; where they are. Nothing for the others."""
    find(name)
    if name in _ARCHIVES:
        return [_ARCHIVES[name]()]
    if name in _MANY:
        return sorted({member.file for member in _MANY[name]()})
    paths = [published.obtain(file) for file in _FILES.get(name, ())]
    for path, file in zip(paths, _FILES.get(name, ()), strict=True):
        published.content(path, file)
    return paths
