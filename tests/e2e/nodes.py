"""Machines of a kind cluster, which are containers: kills, starts and disconnects them, and wipes their volumes.

Never disconnects a running node from its network, after which it would have another address.
"""

import subprocess
import time

TIMEOUT_S = 120
NETWORK = "kind"


def _docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, f"docker {' '.join(words)}: {done.stderr.strip()}"
    return done.stdout


def kill(node: str) -> None:
    """Kill a node as a power cut does, except that the page cache survives: all writes stay. It keeps its address."""
    address = _docker("inspect", "-f", f"{{{{.NetworkSettings.Networks.{NETWORK}.IPAddress}}}}", node).strip()
    _docker("kill", node)
    # Docker gives a starting container the lowest free address: two nodes that were away together would swap theirs.
    _docker("network", "disconnect", NETWORK, node)
    _docker("network", "connect", "--ip", address, NETWORK, node)


def start(node: str) -> None:
    """Start a node after a kill."""
    _docker("start", node)


def is_running(node: str) -> bool:
    """Return whether the container of a node runs."""
    return _docker("inspect", "-f", "{{.State.Running}}", node).strip() == "true"


def _rules(action: str, node: str) -> None:
    # Not in the table `filter`, whose first rules are those of NetworkPolicies.
    for chain, side in (("PREROUTING", "-i"), ("POSTROUTING", "-o")):
        _docker("exec", node, "iptables", "-t", "mangle", action, chain, side, "eth0", "-j", "DROP")


def cut(node: str) -> None:
    """Block all traffic of a node, whose processes keep running."""
    _rules("-I", node)


def join(node: str) -> None:
    """Unblock the traffic of a node after a cut."""
    _rules("-D", node)


def is_cut(node: str) -> bool:
    """Return whether the traffic of a node is blocked."""
    return "-o eth0 -j DROP" in _docker("exec", node, "iptables", "-t", "mangle", "-S", "POSTROUTING")


def shell(node: str, script: str) -> str:
    """Run a script on the node itself, as root."""
    return _docker("exec", node, "sh", "-c", script)


def signal_processes(node: str, host: str, signal: str) -> None:
    """Send a signal to every process of a pod, found by its host name."""
    shell(
        node,
        "for p in $(pgrep -f .); do "
        f'[ "$(nsenter -t $p -u hostname 2>/dev/null)" = {host} ] && [ "$(cat /proc/$p/comm)" != pause ] '
        f"&& kill -{signal} $p; "
        "done; true",
    )


def space_kib(node: str, folder: str) -> tuple[int, int]:
    """Return the size and the free space of the file system of a folder."""
    size, free = shell(node, f"df --output=size,avail --block-size=1K {folder} | tail -n 1").split()
    return int(size), int(free)


def fill(node: str, volume: str, leave_kib: int) -> None:
    """Fill a bounded volume by a file beside its data, down to a free space."""
    length = space_kib(node, volume)[1] - leave_kib
    shell(node, f"fallocate --length {length}K {_filling(volume)} || true")  # others may take space meanwhile


def empty(node: str, volume: str) -> None:
    """Undo `fill`."""
    file = _filling(volume)
    mounted = f"mountpoint -q {file.rpartition('/')[0]}"  # a started machine mounts its volumes first
    shell(node, f"for n in $(seq 100); do {mounted} && break; sleep 0.3; done; rm -f {file}")


def _filling(volume: str) -> str:
    return f"{volume.removesuffix('/data')}/filling"


SLOW_DISK = "/run/slow-disk"


def slow_down(node: str, volume: str) -> None:
    """Hold all writes of a bounded volume for a second and a half, again and again, until `speed_up`."""
    # The shell stays in the folder meanwhile: a frozen file system that is unmounted could not be thawed.
    hold = f"(cd {volume} && fsfreeze --freeze . && sleep 1.5 && fsfreeze --unfreeze .)"
    script = f"touch {SLOW_DISK}; while [ -e {SLOW_DISK} ]; do {hold}; sleep 0.5; done; touch {SLOW_DISK}.ended"
    _docker("exec", "--detach", node, "sh", "-c", script)


def speed_up(node: str) -> None:
    """End `slow_down`, and wait until the volume is writable."""
    shell(node, f"rm -f {SLOW_DISK}; until [ -e {SLOW_DISK}.ended ]; do sleep 0.1; done; rm {SLOW_DISK}.ended")


def stutter(node: str, host: str, times: int = 10) -> None:
    """Stop every process of a pod for half a second, again and again, with 20 ms in between.

    Most of the requests that it reads in these 20 ms wait for their answer through the next stop.
    """
    shell(
        node,
        "pids=; for p in $(pgrep -f .); do "
        f'[ "$(nsenter -t $p -u hostname 2>/dev/null)" = {host} ] && [ "$(cat /proc/$p/comm)" != pause ] '
        '&& pids="$pids $p"; done; '
        f"for n in $(seq {times}); do kill -STOP $pids; sleep 0.5; kill -CONT $pids; sleep 0.02; done",
    )


def timed(start_s: float) -> str:
    """Format the time since `start_s`, a `time.monotonic()`."""
    return f"{time.monotonic() - start_s:.1f} s"
