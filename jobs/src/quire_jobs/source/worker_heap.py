"""What Spark's garbage collections in a Python worker look at: not what libraries have made once. Owns that moment.

Spark collects all garbage of a worker after each task (`pyspark.daemon`), and that walks over every object which some
hundred modules have made: tens of milliseconds a task, more than a task of 12 MiB takes to be read and decoded. What is
there when the second task begins stays for the life of the process, so from then on collections leave it out. Spark
has collected right before, so no garbage stays with it; what of it goes later is freed all the same, unless it refers
to itself, and that is at most one open cluster.
"""

import gc
import os

_tasks: dict[int, int] = {}


def task_begins() -> None:
    """A task of this process begins; its first one imports what all of them need."""
    process = os.getpid()  # a fork has tasks of its own
    _tasks[process] = _tasks.get(process, 0) + 1
    if _tasks[process] == 2:
        gc.freeze()
