"""What the network of an earlier run makes of rows, as fixed features for a linear model."""

from __future__ import annotations

from torch import Tensor, nn

from fedloom.errors import ConfigError, ModelError
from fedloom.federation.model import running_statistics
from fedloom.prediction.predictor import Predictor


class Frozen(nn.Module):
    """A network that is never trained, nor in training: its dropout is off."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Frozen:
        """It stays as it is."""
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        """The features of rows, flat."""
        found: Tensor = self.network(x)
        return found.flatten(1)


def front_of(run: str) -> tuple[Frozen, int]:
    """The network of a run without its last layer, and how many numbers it makes of a row."""
    if not run:
        raise ConfigError("model.run: a model of the name 'trained' needs the folder of the run whose features it has")
    network = Predictor.open(run).module()
    if running_statistics(network):
        raise ModelError(f"{run}: a network with BatchNorm has statistics that move; take one without for its features")
    linear = [(name, part) for name, part in network.named_modules() if isinstance(part, nn.Linear)]
    if not linear or not linear[-1][0]:
        raise ModelError(f"{run}: its network has no last linear layer whose inputs could be features")
    name, last = linear[-1]
    parent, _, own = name.rpartition(".")
    setattr(network.get_submodule(parent), own, nn.Identity())
    return Frozen(network), last.in_features
