"""Starts bookies for the upstream suites: `quire bookie start`, forked from a process that has imported everything.

A suite starts about a hundred bookies, and imports take most of the time of a start. Reads `CONFIG<tab>LOG` lines from
standard input and answers each with a process id. Each bookie is a separate process that can be killed, stopped and
continued. The bookies end with this process, which ends with its input.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys

from quire_bookie.cli.main import run

_SET_PARENT_DEATH_SIGNAL = 1  # prctl(2)
_EARLY = ("quire_bookie.cli.serve_bookie", "uvloop", "aiohttp.web", "rocksdict", "pydantic")


def serve() -> None:
    """Start a bookie for each line until standard input ends."""
    for name in _EARLY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children leave no zombies, which would look like running bookies
    for line in sys.stdin:
        config, log = line.rstrip("\n").split("\t")
        child = os.fork()
        if child == 0:
            _bookie(config, log)
        print(child, flush=True)


def _bookie(config: str, log: str) -> None:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        with open(os.devnull) as nothing, open(log, "a") as output:
            os.dup2(nothing.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        code = run(["bookie", "start", "--config", config])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
