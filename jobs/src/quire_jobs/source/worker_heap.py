"""Keeps objects that libraries create once out of Spark's garbage collections in a Python worker.

Spark collects the garbage of a worker after each task (`pyspark.daemon`). That visits every object that some hundred
modules have created and takes tens of milliseconds per task, more than reading and decoding a task of 12 MiB. Objects
that exist when the second task begins live as long as the process, so later collections skip them. Spark has collected
right before, so no garbage stays with them. If such objects are released later, they are freed as usual, unless they
form a cycle: at most one open cluster.
"""

import gc
import os

_tasks: dict[int, int] = {}


def task_begins() -> None:
    """Record the begin of a task in this process. The first task imports the modules that all tasks need."""
    process = os.getpid()  # a fork counts its own tasks
    _tasks[process] = _tasks.get(process, 0) + 1
    if _tasks[process] == 2:
        gc.freeze()
