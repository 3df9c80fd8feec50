"""What all image sets share: pixels are stored as bytes and learnt from as floats."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.errors import ConfigError

Scaling = Literal["unit", "centred", "pixelwise"]
SCALINGS: dict[str, str] = {
    "unit": "pixels divided by 255",
    "centred": "pixels scaled to [-1, 1]",
    "pixelwise": "each pixel, from 0 to 255, standardised over all rows: (x - mean) / (deviation + 0.001)",
}


def scaled(pixels: npt.NDArray[np.uint8], scaling: Scaling) -> Tensor:
    """Bytes (rows, channels, height, width) as floats, scaled in one of three usual ways."""
    if scaling not in SCALINGS:
        raise ConfigError(f"there is no scaling {scaling!r} of images; choose one of {', '.join(SCALINGS)}")
    x = torch.from_numpy(pixels).float()
    if scaling == "pixelwise":
        deviation = x.std(0, correction=0)
        return x.sub_(x.mean(0)).div_(deviation + 0.001)
    x.div_(255)
    return x.sub_(0.5).div_(0.5) if scaling == "centred" else x
