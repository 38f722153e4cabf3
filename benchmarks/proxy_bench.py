"""`python -m benchmarks.proxy_bench`: the stock client through `quire proxy` and directly at the same broker, in turns.

Prints medians of both and their ratio, proxy / quire: of speeds the share that is left, of latencies the increase.
`cpu_us` is the CPU of the proxy, or of the standalone, for each message. Client, proxy, broker and bookie share the
cores of this machine: on more cores less of the speed is lost. With TLS, both connections of the proxy use it.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.__main__ import Case, Results, Side, measure, print_table
from benchmarks.servers import Certificates, Proxy, Quire

CASES = (
    Case("publish 1 KiB, batched", "produce", ("batch=1", "size=1024"), ("msgs_s", "cpu_us")),
    Case("publish 1 KiB, unbatched", "produce", ("batch=0", "size=1024"), ("msgs_s", "cpu_us")),
    Case("publish 64 KiB, unbatched", "produce", ("batch=0", "size=65536", "pending=200"), ("MB_s", "cpu_us")),
    Case("one at a time, 1 KiB", "sync", ("size=1024",), ("p50_ms", "p99_ms")),
    Case("tail consume 1 KiB, batched", "tail", ("batch=1", "size=1024"), ("consume_s", "produced_s")),
    Case("4 clients, 1 KiB, batched", "produce", ("batch=1", "size=1024"), ("msgs_s", "cpu_us"), clients=4),
    Case("16 clients, 1 KiB, unbatched", "produce", ("batch=0", "pending=100"), ("msgs_s", "cpu_us"), clients=16),
    Case("TLS, 1 KiB, batched", "produce", ("batch=1", "size=1024"), ("msgs_s", "cpu_us"), tls=True),
    Case("TLS, one at a time, 1 KiB", "sync", ("size=1024",), ("p50_ms", "p99_ms"), tls=True),
)


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proxy_bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 s a case and one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    options = parser.parse_args()
    seconds, rounds = (3, 1) if options.quick else (options.seconds, options.rounds)
    cases = [case for case in CASES if options.only in case.name]
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        results: dict[str, Results] = {}
        for tls in (False, True):
            results |= compare(Path(folder), [case for case in cases if case.tls == tls], seconds, rounds, tls=tls)
    print_table(cases, ["proxy", "quire"], results)


def compare(folder: Path, cases: list[Case], seconds: int, rounds: int, *, tls: bool) -> dict[str, Results]:
    """Run cases through a proxy and directly."""
    if not cases:
        return {}
    certificates = Certificates(folder) if tls else None
    broker = Quire(folder, certificates=certificates)
    sides: list[Side] = [Proxy(broker, certificates), broker]
    try:
        for side in reversed(sides):
            side.start()
        return {case.name: measure(case, sides, seconds, rounds) for case in cases}
    finally:
        for side in sides:
            side.stop()


if __name__ == "__main__":
    main()
