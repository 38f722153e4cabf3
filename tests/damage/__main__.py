"""`make damage`: rounds of file damage and power cuts, each with a check of every acknowledged entry by its content.

    python -m tests.damage --files 1000 --power 200 --seed 1 --seconds 3600 --folder /tmp/damage

A run stops after `--seconds`; the next one with the same folder and seed continues after its last round.
"""

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.damage.power import PowerCuts, why_not
from tests.damage.rounds import FileDamage


class Totals:
    """Counts over all runs on a folder; stored in a file after each round."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        stored = json.loads(path.read_text()) if path.exists() else {}
        if stored and stored["seed"] != seed:
            raise SystemExit(f"{path.parent} holds a run with --seed {stored['seed']}; use that seed or another folder")
        self.seed = seed
        self.files: int = stored.get("files", 0)
        self.outcomes: Counter[str] = Counter(stored.get("outcomes", {}))
        self.acknowledged: int = stored.get("acknowledged", 0)
        self.checked: int = stored.get("checked", 0)
        self.failures: list[str] = stored.get("failures", [])

    def save(self) -> None:
        """Write the file."""
        self._path.write_text(json.dumps(vars(self) | {"_path": str(self._path)}))


async def damage_files(folder: Path, totals: Totals, rounds: int, deadline_s: float) -> None:
    """Run rounds of file damage until there were `rounds`, or the deadline."""
    if totals.files >= rounds:
        return
    files = FileDamage(folder)
    await files.begin()
    while totals.files < rounds and time.monotonic() < deadline_s:
        seed = totals.seed + totals.files
        try:
            await files.round(seed)
        except Exception as error:  # noqa: BLE001  whatever a round ends with is a finding
            totals.failures.append(f"files, seed {seed}: {type(error).__name__}: {error}")
            print(totals.failures[-1], *traceback.format_exception(error)[-2:], file=sys.stderr, flush=True)
        totals.files += 1
        totals.outcomes.update({" | ".join(key): count for key, count in files.counts.items()})
        files.counts.clear()
        totals.save()
        if totals.files % 50 == 0:
            print(f"file damage: {totals.files} rounds, {len(totals.failures)} failures", flush=True)


def cut_power(folder: Path, totals: Totals, rounds: int, deadline_s: float) -> int:
    """Run power cuts until there were `rounds`, or the deadline. Returns their number."""
    cuts = PowerCuts(folder, totals.seed)
    cuts.begin()
    try:
        while cuts.done < rounds and time.monotonic() < deadline_s:
            try:
                cuts.round()
            finally:
                totals.acknowledged, cuts.acknowledged = totals.acknowledged + cuts.acknowledged, 0
                totals.checked, cuts.checked = totals.checked + cuts.checked, 0
                totals.save()
            if cuts.done % 10 == 0:
                print(f"power cuts: {cuts.done} rounds, {totals.acknowledged} messages acknowledged", flush=True)
        cuts.end()
        totals.checked += cuts.checked
    except Exception as error:  # noqa: BLE001  whatever a round ends with is a finding
        totals.failures.append(f"power, seed {totals.seed + cuts.done}: {type(error).__name__}: {error}")
        traceback.print_exception(error)
        cuts.close()
    totals.save()
    return cuts.done


def report(totals: Totals, power: int) -> None:
    """Print the table."""
    by: dict[tuple[str, str], Counter[str]] = {}
    for key, count in totals.outcomes.items():
        kind, damage, outcome = key.split(" | ")
        by.setdefault((kind, damage), Counter())[outcome] += count
    print(f"\n| file | damage | outcome of {totals.files} rounds |\n|---|---|---|")
    for (kind, damage), counts in sorted(by.items()):
        print(f"| {kind} | {damage} | {', '.join(f'{name} {count}' for name, count in sorted(counts.items()))} |")
    print(f"\n{power} power cuts: {totals.acknowledged} messages acknowledged, {totals.checked} read and compared")
    print(f"{len(totals.failures)} failures, seed {totals.seed}")
    for failure in totals.failures:
        print(f"  {failure[:400]}")


def main() -> int:
    """Run the requested rounds."""
    parser = argparse.ArgumentParser(prog="python -m tests.damage", description=__doc__)
    parser.add_argument("--files", type=int, default=100, help="total rounds of file damage")
    parser.add_argument("--power", type=int, default=10, help="total rounds of power cuts")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first round; 0: draw one")
    parser.add_argument("--seconds", type=float, default=3600, help="stop after the round in which this is exceeded")
    parser.add_argument("--folder", type=Path, help="keep files and state here; default: a temporary folder")
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL + 1)
    with tempfile.TemporaryDirectory(prefix="quire-damage-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        stored = folder / "totals.json"
        seed = options.seed or (json.loads(stored.read_text())["seed"] if stored.exists() else 0)
        totals = Totals(stored, seed or random.SystemRandom().randrange(1, 1 << 31))
        print(f"seed {totals.seed}, folder {folder}", flush=True)
        deadline_s = time.monotonic() + options.seconds
        asyncio.run(damage_files(folder, totals, options.files, deadline_s))
        power = 0
        if options.power and (why := why_not()):
            print(f"power cuts skipped: {why}")
        elif options.power:
            power = cut_power(folder, totals, options.power, deadline_s)
        report(totals, power)
    return 1 if totals.failures else 0


if __name__ == "__main__":
    sys.exit(main())
