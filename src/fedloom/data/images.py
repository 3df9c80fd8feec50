"""What all image sets share: pixels are stored as bytes and learnt from as floats."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.data.table import Table

Scaling = Literal["unit", "centred", "pixelwise"]
SCALINGS: dict[Scaling, str] = {
    "unit": "pixels divided by 255",
    "centred": "pixels scaled to [-1, 1]",
    "pixelwise": "each pixel, from 0 to 255, standardised over all rows: (x - mean) / (deviation + 0.001)",
}


def image_table(
    name: str,
    pixels: npt.NDArray[np.uint8],
    labels: npt.NDArray[Any],
    classes: tuple[str, ...],
    scaling: Scaling,
    notes: tuple[str, ...] = (),
    **parts: Any,
) -> Table:
    """A classification of images, bytes (rows, channels, height, width); ``parts`` are further fields of the table."""
    y = torch.from_numpy(labels.astype(np.int64))
    return Table(
        name, _scaled(pixels, scaling), y, "classification", classes, notes=(SCALINGS[scaling], *notes), **parts
    )


def _scaled(pixels: npt.NDArray[np.uint8], scaling: Scaling) -> Tensor:
    """Bytes as floats, scaled in one of three usual ways."""
    x = torch.from_numpy(pixels).float()
    if scaling == "pixelwise":
        deviation = x.std(0, correction=0)
        return x.sub_(x.mean(0)).div_(deviation + 0.001)
    x.div_(255)
    return x.sub_(0.5).div_(0.5) if scaling == "centred" else x
