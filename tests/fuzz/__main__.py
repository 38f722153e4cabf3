"""`make fuzz`: sends hostile input to servers in this process for a given time. Prints each distinct finding once.

    python -m tests.fuzz --minutes 15 --only "broker http" --seed 7
    python -m tests.fuzz --frames 1000000

A round is some hundred examples for each target, all of one seed, which is printed: `--seed` begins with that one.
A round also sends damaged frames of the stock client; `--frames` sends that number of them, and nothing else.
"""

import argparse
import asyncio
import logging
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.damage import run_frames
from tests.fuzz.targets import TARGETS, Target
from tests.fuzz.watch import watched

EXAMPLES_A_ROUND = 300
FRAMES_A_ROUND = 20_000
FRAMES = "frames"
_NAMES = re.compile(r"0x[0-9a-f]+|[0-9]+|'[^']*'|\"[^\"]*\"")


class Report:
    """Collects the distinct findings of a run; findings that differ only in numbers and names count as one."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.examples = 0

    def take(self, target: str, error: Exception, example: object) -> None:
        """Count a finding; print the first of its kind."""
        text = f"{type(error).__name__}: {error}".strip()
        ends = [line for line in text.splitlines() if line.strip() and "rewritten" not in line]
        place = [line for line in ends if line.lstrip().startswith("File ")][-1:]
        kind = re.sub(
            r"0x[0-9a-f]+|[0-9]+|'[^']*'|\"[^\"]*\"", "_", " ".join((target, ends[0][:90], *place, ends[-1][:60]))
        )
        self.known[kind] = self.known.get(kind, 0) + 1
        if self.known[kind] == 1:
            print(f"\n=== {target}: {text[-3000:]}\n--- by {str(example)[:3000]}", flush=True)


def run_round(kind: type[Target], number: int, report: Report, deadline_s: float) -> None:
    """Start a target, send the examples of one seed, check, and stop it."""
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner, watched(runner.get_loop()) as findings:
        target = kind(Path(folder), findings)
        runner.run(target.start())

        @seed(number)
        @settings(
            max_examples=EXAMPLES_A_ROUND,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(target.strategy)
        def run_example(example: Any) -> None:
            if time.monotonic() > deadline_s:
                return
            report.examples += 1
            try:
                runner.run(target.send(example))
            except Exception as error:  # noqa: BLE001  any error of an example is a finding
                report.take(kind.name, error, example)

        run_example()
        try:
            runner.run(target.check_all())
        except Exception as error:  # noqa: BLE001  as above
            report.take(f"{kind.name}, seed {number}, at its end", error, "all of them")
        runner.run(target.stop())
        summary = f"longest step {findings.longest_step_s:.2f} s of processor time; {dict(target.outcomes)}"
        print(f"{kind.name}, seed {number}: {summary}", flush=True)


def damage_frames(number: int, report: Report) -> None:
    """Send damaged frames of the stock client."""
    try:
        run_frames(number, FRAMES_A_ROUND)
    except Exception as error:  # noqa: BLE001  as above
        report.take(f"{FRAMES}, seed {number}", error, "frames of that seed")


def main() -> int:
    """Run the fuzzers. Returns 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=15.0, help="duration (15)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round (1)")
    parser.add_argument("--only", choices=[*(kind.name for kind in TARGETS), FRAMES], help="run only one target")
    parser.add_argument("--frames", type=int, help="send only this number of damaged frames of the stock client")
    given_words = parser.parse_args()
    if given_words.frames is not None:
        run_frames(given_words.seed, given_words.frames)
        return 0
    logging.getLogger("aiohttp.access").disabled = True
    deadline_s = time.monotonic() + given_words.minutes * 60
    report, number = Report(), given_words.seed
    while time.monotonic() < deadline_s:
        for kind in TARGETS:
            if given_words.only in (None, kind.name):
                run_round(kind, number, report, deadline_s)
        if given_words.only in (None, FRAMES):
            damage_frames(number, report)
        number += 1
    print(f"{report.examples} examples, {len(report.known)} distinct findings")
    for finding, count in report.known.items():
        print(f"{count:6} {finding}")
    return 1 if report.known else 0


if __name__ == "__main__":
    sys.exit(main())
