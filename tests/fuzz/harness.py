"""What the fuzzers share: how many cases, by which seed, what may come of one, and what to do to bytes and values.

A case is a number: ``Random(case)`` makes it, so that a failing one can be done again alone. In `make test` there are
few cases, always the same; `make fuzz` takes FUZZ_COUNT and FUZZ_SEED from the environment.
"""

from __future__ import annotations

import copy
import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fedloom.errors import FedloomError

COUNT = int(os.environ.get("FUZZ_COUNT", "0"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
ONLY = os.environ.get("FUZZ_CASE")
MEMORY = 100_000_000
"""What the cases may count on, so that one that is accepted is small."""

REFUSED = "refused in words"


class Silent(AssertionError):
    """Another result, without a word."""


def fuzz(what: str, few: int, attempt: Callable[[Random], str]) -> None:
    """Try many cases, gather all that fail, and say how often what came out; ``few`` of them in `make test`."""
    outcomes, failures = Counter[str](), dict[str, str]()

    def one(case: int) -> None:
        try:
            outcomes[attempt(Random(case))] += 1
        except FedloomError as error:
            outcomes[REFUSED if str(error).strip() else "refused without a word"] += 1
        except (Exception, Hangs) as error:
            *_, last = traceback.extract_tb(error.__traceback__)
            text = "".join(traceback.format_exception(error)[-12:])
            failures.setdefault(f"{type(error).__name__} at {last.filename}:{last.lineno}", f"case {case}\n{text}")
            outcomes["FAILED"] += 1

    if ONLY is not None:
        attempt(Random(int(ONLY)))
        return
    how = settings(
        max_examples=COUNT or few,
        derandomize=not COUNT,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
        database=None,
    )
    trial = how(given(st.integers(0, 2**62))(one))
    (seed(SEED)(trial) if COUNT else trial)()
    print(f"\n{what}: {sum(outcomes.values())} cases:", ", ".join(f"{n} {word}" for word, n in outcomes.most_common()))
    assert not failures, f"{len(failures)} kinds of failure\n\n" + "\n\n".join(failures.values())


def flipped(data: bytes, random: Random) -> bytes:
    """The bytes after something happened to them: flipped, cut, doubled, swapped, emptied."""
    if not data:
        return bytes(random.randrange(256) for _ in range(random.randrange(1, 40)))
    changed, kind = bytearray(data), random.randrange(8)
    at = random.randrange(len(changed))
    if kind == 0:
        changed[at] ^= 1 << random.randrange(8)
    elif kind == 1:
        for _ in range(random.randrange(1, 20)):
            changed[random.randrange(len(changed))] = random.randrange(256)
    elif kind == 2:
        del changed[at:]
    elif kind == 3:
        del changed[at : at + random.randrange(1, 200)]
    elif kind == 4:
        changed[at:at] = changed[: random.randrange(1, 200)]
    elif kind == 5:
        other = random.randrange(len(changed))
        changed[at], changed[other] = changed[other], changed[at]
    elif kind == 6:
        changed[at : at + 8] = random.choice([b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f"])
    else:
        return random.choice([b"", b"\0" * 100, b"{}", b"[]", b"null", data + data])
    return bytes(changed)


def nested(depth: int) -> Any:
    """A list in a list in a list …"""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


STRANGE: list[Any] = [
    0, 1, 2, 3, -1, -7, 10, 10**6, 10**9, 10**12, 2**31, 2**63 - 1, 2**63, -(2**63), 2**64, 10**100,
    0.0, -0.0, 0.5, 1.0, 1.5, -0.5, 1e-300, 1e-45, 1e19, 1e30, 1e38, 1e39, 1e300, 1.7e308, -1e300,
    float("nan"), float("inf"), float("-inf"),
    True, False, "", " ", "none", "auto", "all", "0", "nan", "1e400", "uniform:1:2", "uniform:2:1",
    "lognormal:1e300:1e300", "exponential:1e308", "constant:5", "exponential", "step:0.1:50:0.5",
    "cosine:0.1:0:0", "step:1e300:1:1e300",
    "fedavg", "admm", "linear", "mlp", "iid", "dirichlet", "json:loads", "no.such:thing", "a:b:c", "os:path", ":",
    "1/2", "ü∑😀", "\u202e", "a\nb", "a\0b", "../../x", "/dev/null", "x" * 5000, "\ud800",
    [], [0], [1], [-1], [1, 2, 3], [10**9], [2**63], [1e30], ["a"], [""], [[1]], [None], [float("nan")], [1] * 200,
    {}, {"name": "fedavg"}, {"a": {"b": 1}}, {"name": 3}, nested(30), nested(300),
]  # fmt: skip
"""Values that are of another type, too large, too small, not finite, not text, or nested."""


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything in nested tables and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*at, key)
        yield from places(item, (*at, key))


def altered(value: Any, random: Random) -> None:
    """Remove, replace or add something somewhere in nested tables, in place."""
    ways = list(places(value))
    if not ways:
        return
    *above, last = random.choice(ways)
    table = value
    for key in above:
        table = table[key]
    kind = random.randrange(4)
    if kind == 0:
        del table[last]
    elif kind == 1 and isinstance(table, dict):
        table[random.choice(["", "x", "round", "ü", "name", "0"])] = copy.deepcopy(random.choice(STRANGE))
    elif kind == 2 and isinstance(table[last], int | float) and not isinstance(table[last], bool):
        table[last] = random.choice([table[last] + 1, -table[last], table[last] * 1e30, str(table[last])])
    else:
        table[last] = copy.deepcopy(random.choice(STRANGE))


class Hangs(BaseException):
    """It takes so long that it will never end; nothing on the way may take this for an error of its own."""


@contextmanager
def bounded(seconds: int, what: str) -> Iterator[None]:
    """Whatever takes longer ends here, where there are signals."""

    def ring(number: int, frame: object) -> None:
        raise Hangs(what)

    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def little_memory() -> Iterator[None]:
    """While this holds, whatever takes more than a little is refused."""
    before = os.environ.get("FEDLOOM_MEMORY")
    os.environ["FEDLOOM_MEMORY"] = str(MEMORY)
    try:
        yield
    finally:
        os.environ.pop("FEDLOOM_MEMORY")
        if before is not None:
            os.environ["FEDLOOM_MEMORY"] = before
