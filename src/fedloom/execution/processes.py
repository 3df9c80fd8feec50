"""Worker processes on this machine: persistent, one torch thread each, the data set in memory that all share."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from typing import Any

import torch.multiprocessing

from fedloom.errors import RunError
from fedloom.execution.answers import answered, taken
from fedloom.execution.arena import Inbox, Outbox, shared_folder
from fedloom.execution.executor import Executor, settle_down, unsendable
from fedloom.execution.work import Result, Work
from fedloom.execution.worker import Worker
from fedloom.types import Message

_PRELOAD = ["torch", "fedloom.execution.processes", "fedloom.federation.networks", "fedloom.methods.training"]


class Processes(Executor):
    """So many worker processes; a stack goes to whichever is free."""

    name = "processes"

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or os.cpu_count() or 1
        self.crew: list[_Process] = []

    def open(self, worker: Worker) -> None:
        """Start the processes; those of the run before go on with what is to be done now."""
        share(worker)
        if self.crew and not lives_in_main(worker):
            for process in self.crew:
                process.turn_to(worker)
            return
        self.close()
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context = torch.multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(_PRELOAD)
        try:
            with contextlib.nullcontext() if lives_in_main(worker) else _without_main():
                for _ in range(self.workers):
                    self.crew.append(_Process(context, worker))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.close()
            raise unsendable("worker processes", error) from error

    def map(self, shared: Message, works: Sequence[Work]) -> Iterator[tuple[int, Any]]:
        if not self.crew:
            raise RunError("the worker processes were ended (an error came first); start the run again, or resume it")
        waiting = list(enumerate(works))[::-1]
        busy: dict[Any, tuple[_Process, int]] = {}

        def hand_out(process: _Process, shared: Message | None) -> None:
            number, work = waiting.pop()
            process.send(shared, work)
            busy[process.pipe] = (process, number)

        try:
            for process in self.crew[: len(works)]:
                hand_out(process, shared)
            while busy:
                for pipe in connection.wait(list(busy)):
                    process, number = busy.pop(pipe)
                    yield number, process.receive()
                    if waiting:
                        hand_out(process, None)
        except BaseException:
            self.close()  # answers to an abandoned round must not be taken for those of the next
            raise

    def close(self) -> None:
        for process in self.crew:
            process.close()
        self.crew = []


class _Process:
    """One worker process and the two shared memories between it and us."""

    def __init__(self, context: Any, worker: Worker) -> None:
        self.pipe, theirs = context.Pipe()
        self.shared, self.outbox, self.inbox = Outbox(), Outbox(), Inbox()
        self.process = context.Process(target=_serve, args=(theirs, worker), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, shared: Message | None, work: Work) -> None:
        """Ask for a result; ``shared`` is None when it is that of the last call."""
        packed = None if shared is None else self.shared.pack(shared)
        try:
            self.pipe.send((packed, self.outbox.pack(work)))
        except (BrokenPipeError, OSError) as error:
            raise self._died() from error

    def turn_to(self, worker: Worker) -> None:
        """Work for this problem, method and channel from now on."""
        try:
            self.pipe.send(worker)
        except (BrokenPipeError, OSError) as error:
            raise self._died() from error

    def receive(self) -> Result:
        """The result that was asked for, or the error that came instead."""
        try:
            answer = self.pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise self._died() from error
        result: Result = self.inbox.unpack(taken(answer))
        return result

    def close(self) -> None:
        """End the process, however it is, and give its memory back."""
        with contextlib.suppress(BrokenPipeError, OSError):  # it may be gone already, which is what we want
            self.pipe.send(None)
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()
        self.shared.close()
        self.outbox.close()

    def _died(self) -> RunError:
        self.process.join(timeout=5)
        code = self.process.exitcode
        why = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        return RunError(
            f"a worker process ended {why}; if memory ran out, use fewer --workers. The run can be resumed "
            "from its last checkpoint"
        )


def lives_in_main(worker: Worker) -> bool:
    """Whether the model or the method is defined in the user's script itself, which workers must then import."""
    try:
        return b"__main__" in pickle.dumps((worker.problem.model, worker.method, worker.channel))
    except (pickle.PicklingError, AttributeError, TypeError):
        return True


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Start workers without running the user's script in each of them.

    Otherwise a plain script without ``if __name__ == "__main__"`` would start the whole run again in every worker.
    """
    main = sys.modules["__main__"]
    names = [name for name in ("__file__", "__spec__") if name in main.__dict__]
    hidden: dict[str, Any] = {name: main.__dict__.pop(name) for name in names}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)


def share(worker: Worker) -> None:
    """Move the data set into memory that all processes see, in place: there is never a second copy."""
    data = worker.problem.data
    parts = (data.x, data.y, *(t for r in data.splits.values() for t in (r.offsets, r.rows)))
    tensors = [t for t in parts if t is not None and not t.is_shared()]  # type: ignore[no-untyped-call]
    needed, free = sum(t.numel() * t.element_size() for t in tensors), shutil.disk_usage(shared_folder()).free
    if needed > free:
        raise RunError(
            f"the data set needs {needed >> 20} MiB of shared memory and {shared_folder()} has {free >> 20} MiB; "
            "use the executor 'serial', or enlarge it"
        )
    for tensor in tensors:
        tensor.share_memory_()  # type: ignore[no-untyped-call]


def _serve(pipe: connection.Connection, worker: Worker) -> None:
    """The worker process: answer until told to stop, or until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    settle_down()
    shared_in, inbox, outbox = Inbox(), Inbox(), Outbox()
    shared: Message = {}

    def compute(packed: Any, work: Any) -> Any:
        nonlocal shared
        if packed is not None:
            shared = shared_in.unpack(packed)
        return outbox.pack(inbox.unpack(work).done_by(worker, shared))

    try:
        while True:
            try:
                request = pipe.recv()
            except (EOFError, ConnectionError):
                return
            if request is None:
                return
            if isinstance(request, Worker):
                worker = request
                continue
            answer = answered(compute, *request)
            with contextlib.suppress(OSError):  # if nobody listens any more, the next request is the end
                pipe.send(answer)
    finally:
        outbox.close()
