"""A method around another one: whatever it does not change, the inner method says and does."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from fedloom.federation.client import Client
from fedloom.federation.replies import Replies
from fedloom.methods.method import Context, Method, ServerMethod
from fedloom.types import Memory, Message, State


def _answering(cls: type[Wrapper]) -> type[Wrapper]:
    """Gives the class every property and function of the contract that it does not have: each asks the inner method.

    So what the contract is given later is answered too.
    """
    contract = {**vars(Method), **vars(ServerMethod)}
    for name in sorted(name for name in contract if not name.startswith("_") and name not in vars(cls)):
        value = contract[name]
        asks = property(_asked(name), doc=value.__doc__) if isinstance(value, property) else _called(name, value)
        setattr(cls, name, asks)
    return cls


def _asked(name: str) -> Callable[[Wrapper], Any]:
    return lambda wrapper: getattr(wrapper.inner, name)


def _called(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(wrapper: Wrapper, *args: Any, **more: Any) -> Any:
        return getattr(wrapper.inner, name)(*args, **more)

    return call


@_answering
class Wrapper(ServerMethod):
    """Answers for the inner method; a subclass overrides what it changes.

    It is a method like any other. A subclass has the inner method as a field, and in experiment files that is the table
    ``[method.inner]``; or it makes it from fields of its own.
    """

    inner: ServerMethod

    def __getattr__(self, name: str) -> Any:
        """A hyper-parameter of the inner method, for whoever asks the method as a whole."""
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def turn(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        return self.client(client, received, memory)  # its own, which a subclass may have changed

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        return self.inner.client(client, received, memory)

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return self.inner.server(state, replies, ctx)
