"""A user's signature on the settings of his runs: by it a folder shows who wrote what it asks to import.

The key is random, is made when it is first needed, and lies in the user's own configuration folder, where others can
neither read nor replace it. The signature is a keyed hash (HMAC-SHA256) of ``config.toml`` and lies beside it. It is on
the settings alone, which are all that names code: so a folder that is moved or copied stays its user's, and one whose
settings were changed does not.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
import tempfile
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import platformdirs

from fedloom.errors import RunError
from fedloom.register import OWN
from fedloom.storage.files import guarded
from fedloom.trust import doubting

SIGNATURE = "config.sig"
_CONFIG = "config.toml"
_BYTES = 32
_PURPOSE = b"fedloom config.toml\0"


def key_file() -> Path:
    """Where the user's key is."""
    return platformdirs.user_config_path("fedloom") / "key"


def signature_of(config: str) -> str | None:
    """The user's signature on these settings; None where they name nothing to import, or where there can be no key."""
    if OWN not in config:
        return None
    try:
        return _sign(_make_key(), config.encode())
    except (RunError, OSError) as error:
        said = (
            f"the run's settings could not be signed ({error}): to go on with it, or to adapt its model, give --trust"
        )
        warnings.warn(said, stacklevel=2)
        return None


def reading(folder: Path, trust: bool = False, given: Iterable[Any] = ()) -> AbstractContextManager[None]:
    """While the settings of a folder are read: code that they name is imported only if the user wrote them or trusts
    who did. What is ``given`` the user has named himself.
    """
    why = None if trust else stranger(folder)
    return nullcontext() if why is None else doubting(folder, why, given)


def stranger(folder: Path) -> str | None:
    """Why the settings of a folder are not known to be this user's; None: he has signed them."""
    try:
        config, told = (folder / _CONFIG).read_bytes(), (folder / SIGNATURE).read_text(encoding="ascii")
    except (OSError, ValueError):
        return f"its {_CONFIG} is not signed by you"
    try:
        key = _read_key(key_file())
    except FileNotFoundError:
        return f"you have no key ({key_file()}) that could show that you wrote its {_CONFIG}"
    except (RunError, OSError) as error:
        return f"whether you wrote its {_CONFIG} cannot be told: {error}"
    if not hmac.compare_digest(_sign(key, config), told.strip()):
        return f"its {_CONFIG} was changed since it was signed, or was signed by another key than yours ({key_file()})"
    return None


def _sign(key: bytes, config: bytes) -> str:
    return hmac.new(key, _PURPOSE + config, "sha256").hexdigest()


def _make_key() -> bytes:
    """The user's key, made if there is none; of several processes that make one at a time all get the first."""
    path = key_file()
    with suppress(FileNotFoundError):
        return _read_key(path)
    with guarded(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, own = tempfile.mkstemp(dir=path.parent)  # which nobody else can read
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(own, path)
        finally:
            Path(own).unlink(missing_ok=True)
    return _read_key(path)


def _read_key(path: Path) -> bytes:
    """The key in a file that only its user can read."""
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
        if os.name == "posix" and (found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077):
            raise RunError(f"others may know the key {path}: remove it, and a new one is made")
        key = file.read(_BYTES + 1)
    if len(key) != _BYTES:
        raise RunError(f"{path} is no key of fedloom: remove it, and a new one is made")
    return key
