"""What the machine can do at most, and how much memory a process and its workers take."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from time import perf_counter

import psutil
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.workloads import Workload, loss_of, network

SIDE = 1024
SGEMM_FLOPS = 2 * SIDE**3


def cores() -> int:
    """The cores that this process may use."""
    return len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1


def sgemm() -> Callable[[int], float]:
    """Large matrix products in float32 on all cores: what runs k of them and says how long they took."""
    torch.set_num_threads(cores())
    a, b, c = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE), torch.empty(SIDE, SIDE)

    def run(products: int) -> float:
        start = perf_counter()
        for _ in range(products):
            torch.mm(a, b, out=c)
        return perf_counter() - start

    return run


def flops_per_sample(workload: Workload) -> float:
    """Floating-point operations of one sample's forward and backward pass through the model's matrix products."""
    x = torch.randn(workload.batch, *workload.shape)
    y = torch.zeros(workload.batch, 1) if workload.outputs == 1 else torch.zeros(workload.batch, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        loss_of(workload)(network(workload)(x), y).backward()
    return float(counter.get_total_flops()) / workload.batch


def peak_of_one_process(pid: int) -> int:
    """The most bytes a process ever had resident, where the system tells (Linux); else what it has now."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return int(psutil.Process(pid).memory_info().rss)
    lines = (line.split() for line in status.read_text().splitlines())
    return sum(
        int(line[1]) * 1024 for line in lines if line[0] == "VmHWM:"
    )  # a process that just ended has no such line


def resident(pid: int) -> int:
    """Bytes of a process and all its descendants now; a page that several share counts once where that is known."""
    total = 0
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            memory = process.memory_full_info()
            total += getattr(memory, "pss", memory.rss)
    return total


class MemoryWatch:
    """Looks at a process and its workers every tenth of a second until it is stopped, and keeps the largest sum."""

    def __init__(self, pid: int) -> None:
        self.pid, self.peak = pid, 0
        self._stopped = Event()
        self._thread = Thread(target=self._keep_looking, daemon=True)
        self._thread.start()

    def look(self) -> None:
        """One look, which also sees the highest that the process itself ever reached."""
        self.peak = max(self.peak, resident(self.pid), peak_of_one_process(self.pid))

    def stop(self) -> None:
        """From here on only `look` looks: nothing runs beside what is timed."""
        self._stopped.set()
        self._thread.join()

    def _keep_looking(self) -> None:
        with suppress(psutil.NoSuchProcess, FileNotFoundError):
            while not self._stopped.wait(0.1):
                self.look()
