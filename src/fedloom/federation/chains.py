"""Finds the fully connected layers of a module that is nothing but these, however its user has written it.

``torch.fx`` writes down what ``forward`` does with its input. A chain of linear maps and activations is recognised in a
bare ``nn.Linear``, an ``nn.Sequential``, or a class with a ``forward`` of its own; anything else is no chain, and the
reason says at which operation it ends.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
_MODULES: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
_CALLS: dict[Any, str] = {
    torch.relu: "relu",
    nn.functional.relu: "relu",
    torch.tanh: "tanh",
    nn.functional.tanh: "tanh",
    torch.sigmoid: "sigmoid",
    nn.functional.sigmoid: "sigmoid",
    **{name: name for name in ACTIVATIONS},  # as methods of a tensor
}


@dataclass(frozen=True)
class Link:
    """A linear map by the names of its tensors, and what follows it."""

    weight: str
    bias: str | None
    activation: str = "none"


class NoChainError(Exception):
    """Says at what a module is no chain of fully connected layers."""


def chain_of(module: nn.Module) -> tuple[Link, ...]:
    """The fully connected layers, in their order; a NoChainError that says why there is no such order.

    ``forward`` may do something else in training, so it is looked at both ways.
    """
    if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        raise NoChainError("it has hooks")
    was = module.training
    looks = []
    try:
        for training in (True, False):
            with torch.set_grad_enabled(training):  # which a forward may ask for, too
                looks.append(_look(module.train(training)))
    finally:
        module.train(was)
    if looks[0] != looks[1]:
        raise NoChainError("it does something else in training")
    return looks[0]


def _look(module: nn.Module) -> tuple[Link, ...]:
    if type(module) is nn.Linear:  # which fx would not look into
        return (Link("weight", None if module.bias is None else "bias"),)
    try:
        graph = fx.Tracer().trace(module)
    except Exception as error:  # whatever a user's forward does with what stands in for its input
        raise NoChainError("what it does depends on the values or the number of its rows") from error
    parts, links = dict(module.named_modules()), list[Link]()
    at: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "placeholder":
            if at is not None:
                raise NoChainError("it reads more than one input")
            at = node
        elif node.op == "get_attr" or _is_size(node, at):
            continue
        elif node.op == "output":
            if node.args[0] is not at:
                raise NoChainError("it puts out something beside one tensor")
        elif not node.args or node.args[0] is not at:
            raise NoChainError(f"{_word(node, parts)} takes something from further back")
        else:
            _add(links, node, parts)
            at = node
    if not links:
        raise NoChainError("it has no fully connected layer")
    if links[-1].activation != "none":
        raise NoChainError("an activation follows its last layer")
    if len({link.weight for link in links}) < len(links):
        raise NoChainError("two of its layers share their weights")
    return tuple(links)


def _add(links: list[Link], node: fx.Node, parts: Mapping[str, nn.Module]) -> None:
    """One more operation on what the last one gave."""
    part = parts.get(str(node.target)) if node.op == "call_module" else None
    activation = _MODULES.get(type(part)) if part is not None else _CALLS.get(node.target)
    if type(part) is nn.Linear:
        links.append(Link(f"{node.target}.weight", None if part.bias is None else f"{node.target}.bias"))
    elif node.target is nn.functional.linear:
        links.append(Link(*_own_tensors(node)))
    elif activation is not None and links and links[-1].activation == "none" and _plain(node, part):
        links[-1] = Link(links[-1].weight, links[-1].bias, activation)
    elif type(part) is not nn.Identity and (links or not _flattens(node, part)):
        raise NoChainError(f"it has {_word(node, parts)}")


def _own_tensors(node: fx.Node) -> tuple[str, str | None]:
    """The tensors of F.linear(x, weight, bias), if they are the module's."""
    given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
    weight, bias = given.get("weight"), given.get("bias")
    named = [one is None or (isinstance(one, fx.Node) and one.op == "get_attr") for one in (weight, bias)]
    if weight is None or not all(named):
        raise NoChainError("the weights of a linear map are worked out from something")
    return str(weight.target), None if bias is None else str(bias.target)  # type: ignore[union-attr]


def _plain(node: fx.Node, part: nn.Module | None) -> bool:
    return part is not None or (len(node.args) == 1 and set(node.kwargs) <= {"inplace"})


def _flattens(node: fx.Node, part: nn.Module | None) -> bool:
    """Whether it makes one vector of each row: flatten(1), view(len, -1), reshape(-1, 784)."""
    if part is not None:
        return type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1)
    if node.target in (torch.flatten, "flatten"):
        given: dict[str, Any] = dict(zip(("input", "start_dim", "end_dim"), node.args, strict=False)) | node.kwargs
        return (given.get("start_dim", 0), given.get("end_dim", -1)) == (1, -1)
    if node.target in ("view", "reshape", torch.reshape):
        shape = node.args[1] if len(node.args) == 2 else node.args[1:]
        if not isinstance(shape, tuple | list) or len(shape) != 2 or node.kwargs:
            return False
        first, second = shape
        if not isinstance(second, int):
            return False
        return isinstance(first, fx.Node) or (isinstance(first, int) and first == -1 and second > 0)
    return False


def _is_size(node: fx.Node, at: fx.Node | None) -> bool:
    """x.size(0) or x.shape[0]: how many rows there are."""
    source: Any = node.args[0] if node.args else None
    if source is at and (node.target == "size" or (node.target is getattr and node.args[1] == "shape")):
        return len(node.args) == 1 or node.args[1] in (0, "shape")
    sized = isinstance(source, fx.Node) and (source.target == "size" or source.target is getattr)
    return sized and node.target is operator.getitem and bool(node.args[1] == 0)


def _word(node: fx.Node, parts: Mapping[str, nn.Module]) -> str:
    """What an operation is called, for people."""
    if node.op == "call_module":
        return f"a layer {type(parts[str(node.target)]).__name__} ({node.target})"
    return f"a call of {getattr(node.target, '__name__', node.target)}"
