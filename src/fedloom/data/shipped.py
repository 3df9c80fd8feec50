"""The sets that scikit-learn ships: small, real, and there without a download."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.data.register import SOURCES
from fedloom.data.table import Table
from fedloom.federation.scale import Scale


@SOURCES.register(
    "digits",
    task="classification",
    rows="1,797",
    features="1x8x8",
    origin="UCI Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, 1998); ships with scikit-learn",
    licence="CC BY 4.0",
)
def digits() -> Table:
    """Handwritten digits, small enough for a first try.

    1,797 of 8x8 pixels (UCI, 1998). Pixels 0..16 are divided by 16.
    """
    table = _digits()
    x = torch.from_numpy(table[:, :64]).float().div_(16).view(-1, 1, 8, 8)
    y = torch.from_numpy(table[:, 64]).to(torch.int64)
    return Table("digits", x, y, "classification", tuple(str(k) for k in range(10)), notes=("pixels divided by 16",))


def _digits() -> npt.NDArray[np.float64]:
    """Pixels and label of each digit, from scikit-learn's file: to import all of it takes longer than to train."""
    package = importlib.util.find_spec("sklearn")
    file = Path((package and package.origin) or "").parent / "datasets/data/digits.csv.gz"
    if file.is_file():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


@SOURCES.register(
    "breast-cancer",
    task="binary",
    rows="569",
    features="30",
    origin="UCI Breast Cancer Wisconsin, diagnostic (Wolberg et al., 1995); ships with scikit-learn",
    licence="CC BY 4.0",
)
def breast_cancer() -> Table:
    """Malignant or benign from measurements of cell nuclei.

    569 tumours, 30 measurements of their cell nuclei, malignant (0) or benign (1). Features are standardised.
    """
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    x = standardised(torch.tensor(bunch.data))
    y = torch.tensor(bunch.target, dtype=torch.float32).unsqueeze(1)
    names = tuple(str(name) for name in bunch.target_names)
    return Table("breast-cancer", x, y, "binary", names, notes=(STANDARDISED,))


@SOURCES.register(
    "diabetes",
    task="regression",
    rows="442",
    features="10",
    origin="Efron, Hastie, Johnstone and Tibshirani, Least angle regression (2004); ships with scikit-learn",
    licence="published with the paper, no licence stated",
)
def diabetes() -> Table:
    """Progress of diabetes in a year from ten measurements.

    442 patients, 10 measurements, the progress of their diabetes a year later. Both sides are standardised.
    """
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes()
    target = torch.tensor(bunch.target).unsqueeze(1)
    mean, deviation = float(target.mean()), float(target.std(correction=0))
    notes = (STANDARDISED, f"target standardised: (y - {mean:.4g}) / {deviation:.4g}")
    return Table("diabetes", standardised(torch.tensor(bunch.data)), standardised(target), "regression", notes=notes)


STANDARDISED = "features standardised over all rows"


def standardised(values: Tensor, basis: Tensor | None = None) -> Tensor:
    """Columns of mean 0 and deviation 1 over all rows, in float32; a constant column becomes 0.

    With a ``basis``, the mean and the deviation are those of its columns.
    """
    scale = standard_scale(values if basis is None else basis)
    return ((values.double() - scale.shift[0]) / scale.factor[0]).float()


def standard_scale(values: Tensor) -> Scale:
    """The mean and the deviation of every column over all rows; a constant column has deviation 1."""
    mean, deviation = values.double().mean(0), values.double().std(0, correction=0)
    return Scale(mean[None], torch.where(deviation > 0, deviation, 1.0)[None], mean)
