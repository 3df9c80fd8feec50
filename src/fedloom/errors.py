"""What fedloom says when something is wrong: the thing, the place, the remedy."""

from __future__ import annotations


class FedloomError(Exception):
    """Any error that fedloom raises on purpose; its text is meant for the user."""


class ConfigError(FedloomError):
    """A setting that cannot be: an unknown key, a wrong type, an impossible combination."""


class Unfit(ConfigError):
    """A setting that does not go with the others; ``what`` is what is wrong with it, without its name and value."""

    def __init__(self, text: str, what: str) -> None:
        super().__init__(text)
        self.what = what


class DataError(FedloomError):
    """A data set that is missing, damaged, or does not fit what is asked of it."""


class ModelError(FedloomError):
    """A model that cannot be a function of one vector, or does not fit the data."""


class RunError(FedloomError):
    """A run's folder that is damaged, busy, or already there."""


class Untrusted(RunError):
    """A folder asks for code to be run, and the user is not known to have written it."""


class Deserted(RunError):
    """No client will ever be there again, so there is nobody left to train on."""


class ClientError(FedloomError):
    """A client's work failed: says which client, in which round and step, and why."""


class MessageError(ClientError):
    """A message that another machine sent and that is not what it must be."""


class Diverged(ClientError):
    """A client's reply is NaN or infinite: the step sizes are too large for the problem."""
