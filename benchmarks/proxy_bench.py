"""`python -m benchmarks.proxy_bench`: the stock client through `quire proxy` and directly at the same broker, in turns.

Prints medians of both and their ratio, proxy / quire: of speeds the share that is left, of latencies the increase.
`cpu_us` is the CPU of the proxy, or of the standalone, for each message. Client, proxy, broker and bookie share the
cores of this machine: on more cores less of the speed is lost.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.__main__ import Case, Side, measure, print_table
from benchmarks.servers import Proxy, Quire

CASES = (
    Case("publish 1 KiB, batched", "produce", ("batch=1", "size=1024"), ("msgs_s", "cpu_us")),
    Case("publish 1 KiB, unbatched", "produce", ("batch=0", "size=1024"), ("msgs_s", "cpu_us")),
    Case("publish 64 KiB, unbatched", "produce", ("batch=0", "size=65536", "pending=200"), ("MB_s", "cpu_us")),
    Case("one at a time, 1 KiB", "sync", ("size=1024",), ("p50_ms", "p99_ms")),
    Case("tail consume 1 KiB, batched", "tail", ("batch=1", "size=1024"), ("consume_s", "produced_s")),
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
        broker = Quire(Path(folder))
        sides: list[Side] = [Proxy(broker), broker]
        try:
            for side in reversed(sides):
                side.start()
            results = {case.name: measure(case, sides, seconds, rounds) for case in cases}
        finally:
            for side in sides:
                side.stop()
    print_table(cases, sides, results)


if __name__ == "__main__":
    main()
