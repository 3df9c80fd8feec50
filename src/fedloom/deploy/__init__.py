"""From the simulator to real devices: the same experiment on a fleet of Flower nodes. Needs ``fedloom[flower]``."""

from __future__ import annotations

from fedloom.deploy.node import client_app
from fedloom.deploy.server import serve, server_app
from fedloom.deploy.terms import Terms

__all__ = ["Terms", "client_app", "serve", "server_app"]
