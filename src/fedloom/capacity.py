"""What this machine can hold: sizes are estimated, and refused before they are allocated.

An operating system promises more memory than there is and kills who then uses it, so that an error comes too late.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from fedloom.errors import FedloomError

ALLOCATION = "DefaultCPUAllocator"
"""What torch says where memory is not enough."""
ALLOWED = "FEDLOOM_MEMORY"
"""The environment variable that has the bytes which a user allows, where these are fewer than there are."""
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_UNITS = ((10**18, "EB"), (10**15, "PB"), (10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
_UNKNOWN = 1 << 46
"""Where nothing tells how much memory there is: more than any machine has, so that only the absurd is refused."""


def memory() -> int:
    """The bytes that fedloom may count on: this machine's memory, or what its container or its user allows."""
    told = os.environ.get(ALLOWED, "")
    return min(_machine(), int(told)) if told.isdecimal() else _machine()


@cache
def _machine() -> int:
    limits = [_physical()]
    for path in _CGROUPS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        limits += [int(text)] if text.isdecimal() else []
    return min(limits)


def _physical() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf, and some systems not these names
        return _UNKNOWN


def refuse_larger(needed: int, what: str, remedy: str, error: type[FedloomError]) -> None:
    """An error of this type if ``what`` needs more bytes than the machine has."""
    if needed > memory():
        raise error(f"{what}: this needs about {size_text(needed)}; the machine has {size_text(memory())}. {remedy}")


def size_text(size: int) -> str:
    """Bytes in three digits at most."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size // unit:,} {name}" if size >= 10 * unit else f"{size / unit:.1f} {name}"
    return f"{size} B"
