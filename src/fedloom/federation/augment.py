"""Augmentation of images: mini-batches for training are shown mirrored and moved, each row anew whenever it is drawn.

What happens to a row is a hash of (seed, round, client, local step, place in the mini-batch), so it depends neither on
the executor nor on the stack, and a run that was resumed goes on with the same images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.ragged import Ints
from fedloom.federation.randomness import Draw
from fedloom.register import hint

KINDS = ("flip", "crop")
_EIGHTH = 8  # of its height an image is moved by, unless a number is given
_BITS = np.uint64(20)


@dataclass(frozen=True)
class Augment:
    """How images of a mini-batch are changed.

    ``flip`` is the probability with which an image is mirrored left to right. ``crop`` is the number of pixels by which
    it is moved at the most, up or down and left or right, as if it had been padded and cropped again: what comes in is
    the pixel of its edge. Nothing is drawn for what is 0.
    """

    flip: float = 0.0
    crop: int = 0

    @staticmethod
    def parse(text: str, shape: tuple[int, ...]) -> Augment:
        """What "flip,crop" or "flip:0.5,crop:4" means for rows of this shape, which must be images."""
        if len(shape) != 3:
            raise ConfigError(
                f"augment = {text!r} is for images, (channels, height, width), but a row has shape {tuple(shape)}; "
                "leave it out"
            )
        found = dict[str, float]()
        for part in (one.strip() for one in text.split(",")):
            name, _, value = part.partition(":")
            if name not in KINDS or name in found:
                why = "is there twice" if name in found else f"does not exist; {hint(name, KINDS)}"
                raise ConfigError(f"augment = {text!r}: {name!r} {why}")
            found[name] = _number(text, name, value, shape)
        return Augment(found.get("flip", 0.0), int(found.get("crop", 0)))

    def __str__(self) -> str:
        return f"flip:{self.flip:g},crop:{self.crop}"

    def images(self, x: Tensor, draw: Draw, purpose: str, clients: Ints, step: int) -> Tensor:
        """The mini-batches x of some clients, shape (clients, rows, channels, height, width), in their local step."""
        count, rows, channels, height, width = x.shape
        words = draw.words(f"augment {purpose}", clients, rows, lane=step).reshape(-1)
        mirrored = torch.from_numpy((words >> np.uint64(40)).astype(np.float64) * 2.0**-24 < self.flip)
        down, right = (self._moves(words >> at) for at in (_BITS, np.uint64(0)))
        row = (torch.arange(height) + down[:, None]).clamp_(0, height - 1)
        column = torch.arange(width).expand(len(words), width)
        column = torch.where(mirrored[:, None], width - 1 - column, column) + right[:, None]
        pixel = (row * width)[:, :, None] + column.clamp_(0, width - 1)[:, None, :]
        flat = x.reshape(-1, channels, height * width)
        taken = flat.gather(2, pixel.reshape(-1, 1, height * width).expand(-1, channels, -1))
        return taken.view(count, rows, channels, height, width)

    def _moves(self, words: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]) -> Tensor:
        """By how many pixels each is moved, from −crop to crop, from the last 20 bits of its word."""
        bits = words & np.uint64((1 << int(_BITS)) - 1)
        return torch.from_numpy(((bits * np.uint64(2 * self.crop + 1)) >> _BITS).astype(np.int64)) - self.crop


def _number(text: str, name: str, value: str, shape: tuple[int, ...]) -> float:
    """The number that goes with a kind of change: the probability of a flip, the pixels of a crop."""
    if not value:
        return 0.5 if name == "flip" else max(1, shape[1] // _EIGHTH)
    try:
        number = float(value) if name == "flip" else int(value)
    except ValueError:
        number = -1
    most = 1 if name == "flip" else min(shape[1:]) - 1
    if not 0 <= number <= most:
        wanted = "a probability from 0 to 1" if name == "flip" else f"whole pixels from 0 to {most}"
        raise ConfigError(f"augment = {text!r}: {name}:{value} cannot be; give {wanted}")
    return number
