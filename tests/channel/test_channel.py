from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom.channel import TRANSFORMS, Channel, Quantise, payload
from fedloom.errors import ConfigError
from fedloom.federation.randomness import Draw
from ways import up


def test_an_empty_channel_changes_nothing_and_counts() -> None:
    message = {"dx": torch.randn(3, 4)}
    decoded, size = up(Channel(), message, np.arange(3), Draw(0))
    assert decoded is message
    assert size == payload({"dx": torch.zeros(4)})
    assert not Channel().lossy


def test_a_lossy_channel_is_refused_for_a_method_that_must_be_exact() -> None:
    Channel().check("MOCHA", exact=True)
    Channel([Quantise(8)]).check("FedAvg", exact=False)
    with pytest.raises(ConfigError, match=r"'MOCHA' needs exact messages.*remove the lossy channel"):
        Channel([Quantise(8)]).check("MOCHA", exact=True)


def test_transforms_have_names_for_experiment_files() -> None:
    assert TRANSFORMS["quantise"] is Quantise
