"""Fully connected layers are found however a module is written, and nothing else is taken for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedloom.federation.chains import Link, NoChainError, chain_of


class Written(nn.Module):
    """A class as a tutorial writes it."""

    def __init__(self, forward: Callable[[Written, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(4, 2, bias=False)
        self.way = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


class Own(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


EXPECTED = (Link("a.weight", "a.bias", "relu"), Link("b.weight", None))
CHAINS: dict[str, Callable[[Written, Tensor], Tensor]] = {
    "functions": lambda m, x: m.b(F.relu(m.a(x))),
    "in place": lambda m, x: m.b(F.relu(m.a(x), inplace=True)),
    "torch": lambda m, x: m.b(torch.relu(m.a(torch.flatten(x, 1)))),
    "methods": lambda m, x: m.b(m.a(x.flatten(1)).relu()),
    "view by size": lambda m, x: m.b(m.a(x.view(x.size(0), -1)).relu()),
    "view by shape": lambda m, x: m.b(m.a(x.reshape(x.shape[0], -1)).relu()),
    "view by width": lambda m, x: m.b(m.a(x.view(-1, 6)).relu()),
}
OTHERS: dict[str, tuple[Callable[[Written, Tensor], Tensor], str]] = {
    "a skip": (lambda m, x: m.b(torch.relu(m.a(x)) + m.a(x)), "from further back|a call of add"),
    "a softmax": (lambda m, x: F.softmax(m.b(m.a(x)), -1), "a call of softmax"),
    "an activation at the end": (lambda m, x: torch.tanh(m.b(m.a(x))), "an activation follows its last layer"),
    "two in a row": (lambda m, x: m.b(torch.tanh(torch.relu(m.a(x)))), "a call of tanh"),
    "scaled": (lambda m, x: m.b(m.a(x) * 2), "a call of mul"),
    "an activation first": (lambda m, x: m.b(m.a(torch.relu(x))), "a call of relu"),
    "noise in training": (lambda m, x: m.b(m.a(x)) if m.training else m.b(torch.relu(m.a(x))), "else in training"),
    "dropout": (lambda m, x: m.b(F.dropout(m.a(x), training=m.training)), "a call of dropout"),
    "by gradients": (lambda m, x: m.b(m.a(x) if torch.is_grad_enabled() else torch.relu(m.a(x))), "else in training"),
    "by its values": (lambda m, x: m.b(m.a(x)) if x.sum() > 0 else m.b(m.a(-x)), "depends on the values"),
    "rows mixed": (lambda m, x: m.b(m.a(x.flatten(0))), "a call of flatten"),
}


@pytest.mark.parametrize("way", CHAINS.values(), ids=CHAINS)
def test_a_chain_is_found_in_a_users_forward(way: Callable[[Written, Tensor], Tensor]) -> None:
    module = Written(way)
    assert chain_of(module) == EXPECTED
    assert module.training


@pytest.mark.parametrize(("way", "why"), OTHERS.values(), ids=OTHERS)
def test_whatever_else_a_forward_does_is_no_chain(way: Callable[[Written, Tensor], Tensor], why: str) -> None:
    with pytest.raises(NoChainError, match=why):
        chain_of(Written(way))


def test_bare_nested_and_derived_layers_are_chains() -> None:
    assert chain_of(nn.Linear(3, 2)) == (Link("weight", "bias"),)
    assert chain_of(Own(3, 2, bias=False)) == (Link("weight", None),)
    nested = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(6, 4), nn.Tanh()), nn.Identity(), nn.Linear(4, 2))
    assert chain_of(nested) == (Link("1.0.weight", "1.0.bias", "tanh"), Link("3.weight", "3.bias"))


def test_shared_weights_and_hooks_are_no_chain() -> None:
    layer = nn.Linear(4, 4)
    with pytest.raises(NoChainError, match="share their weights"):
        chain_of(nn.Sequential(layer, nn.ReLU(), layer))
    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda module, inputs, out: 2 * out)
    with pytest.raises(NoChainError, match="hooks"):
        chain_of(hooked)
