"""Machines of a kind cluster, which are containers: killed, brought back, cut off, their volumes wiped.

A node is never disconnected by `docker network disconnect`: it would come back with another address.
"""

import itertools
import subprocess
import time

TIMEOUT_S = 120


def _docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, f"docker {' '.join(words)}: {done.stderr.strip()}"
    return done.stdout


def kill(node: str) -> None:
    """As by a power cut, but for the page cache: whatever was written stays."""
    _docker("kill", node)


def start(node: str) -> None:
    """After a kill."""
    _docker("start", node)


def is_running(node: str) -> bool:
    """The container of a node runs."""
    return _docker("inspect", "-f", "{{.State.Running}}", node).strip() == "true"


def _rules(action: str, node: str) -> None:
    for chain, side in itertools.product(("INPUT", "OUTPUT", "FORWARD"), ("-i", "-o")):
        if (chain, side) not in (("INPUT", "-o"), ("OUTPUT", "-i")):
            _docker("exec", node, "iptables", "-t", "filter", action, chain, side, "eth0", "-j", "DROP")


def cut(node: str) -> None:
    """Nothing comes in or goes out; everything on it goes on running."""
    _rules("-I", node)


def join(node: str) -> None:
    """After a cut."""
    _rules("-D", node)


def shell(node: str, script: str) -> str:
    """Run on the node itself, as root."""
    return _docker("exec", node, "sh", "-c", script)


def signal_processes(node: str, host: str, signal: str) -> None:
    """To every process of a pod, by the host name that it has: its containers end without a word."""
    shell(
        node,
        "for p in $(pgrep -f .); do "
        f'[ "$(nsenter -t $p -u hostname 2>/dev/null)" = {host} ] && [ "$(cat /proc/$p/comm)" != pause ] '
        f"&& kill -{signal} $p; "
        "done; true",
    )


def timed(start_s: float) -> str:
    """Since a `time.monotonic()`."""
    return f"{time.monotonic() - start_s:.1f} s"
