"""From the simulator to real devices: the same experiment on a fleet of Flower nodes. Needs ``fedloom[flower]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedloom.deploy.apps import client_app, server_app

if TYPE_CHECKING:
    from fedloom.deploy.server import serve
    from fedloom.deploy.terms import Terms

__all__ = ["Terms", "client_app", "serve", "server_app"]


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is asked for: Flower starts a process for every message of a node."""
    from importlib import import_module

    homes = {"Terms": "terms", "serve": "server"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{homes[name]}"), name)
