"""Runs of the simulator in processes of their own, several at a time.

Each is forked from the same beginning, so that nothing an earlier run left behind decides what it does.
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
    """How one run ended: its result, or the traceback of what it raised."""

    def __init__(self, result: R | None, trouble: str) -> None:
        self.result = result
        self.trouble = trouble


def side_by_side(work: Callable[[T], R], tasks: Iterable[T], jobs: int) -> Iterator[tuple[T, Ended[R]]]:
    """Do `work` with every task, so many at a time; yields in the order in which they end."""
    context, left = get_context("fork"), iter(tasks)
    gc.collect()
    gc.freeze()  # what every run begins with is not looked at again in each of them
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
                ended = Ended(None, f"its process ended with {process.exitcode}")
            ready.close()
            process.join()
            yield task, ended


def _run(work: Callable[[T], R], task: T, sender: Connection) -> None:
    """The whole life of a process. Collecting cycles every 700 objects would cost a tenth of a short run."""
    gc.set_threshold(50_000, 20, 100)
    try:
        ended = Ended(work(task), "")
    except KeyboardInterrupt:
        return
    except BaseException:  # noqa: BLE001  a root: the parent prints it
        ended = Ended(None, traceback.format_exc())
    sender.send(ended)
