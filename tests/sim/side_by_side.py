"""Runs the simulator in separate processes, several at a time.

Each process is forked from the same state, so that an earlier run cannot influence it.
"""

import gc
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Ended(Generic[R]):
    """The outcome of one run: its result, or the traceback of its error."""

    def __init__(self, result: R | None, trouble: str) -> None:
        self.result = result
        self.trouble = trouble


def side_by_side(work: Callable[[T], R], tasks: Iterable[T], jobs: int) -> Iterator[tuple[T, Ended[R]]]:
    """Run `work` for every task, at most `jobs` at a time; yields the outcomes in the order of completion."""
    context, left = get_context("fork"), iter(tasks)
    gc.collect()
    gc.freeze()  # the children's collections skip the objects that exist now
    running: dict[Connection, tuple[T, ForkProcess]] = {}
    while True:
        while len(running) < jobs and (task := next(left, None)) is not None:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(work, task, sender), daemon=True)
            process.start()
            sender.close()
            running[receiver] = task, process
        if not running:
            return
        for ready in wait(list(running)):
            assert isinstance(ready, Connection)
            task, process = running.pop(ready)
            try:
                ended: Ended[R] = ready.recv()
            except EOFError:
                process.join()
                ended = Ended(None, f"its process ended with exit code {process.exitcode}")
            ready.close()
            process.join()
            yield task, ended


def _run(work: Callable[[T], R], task: T, sender: Connection) -> None:
    """Run one task in a child. Garbage collection every 700 objects would cost a tenth of a short run."""
    gc.set_threshold(50_000, 20, 100)
    try:
        ended = Ended(work(task), "")
    except KeyboardInterrupt:
        return
    except BaseException:  # noqa: BLE001  a root: the parent prints it
        ended = Ended(None, traceback.format_exc())
    sender.send(ended)
