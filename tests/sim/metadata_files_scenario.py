"""The embedded metadata store on its own files, through power cuts and one damaged file at a time.

Performs the store's group commits on real files, in consecutive runs. Each run ends in a clean close or a power cut at
any write, sync or commit; then one file may be damaged, removed or replaced by an older copy. The next start must have
every acknowledged commit, or be refused. A refusal without damage is an error, as is a repair that lacks an
acknowledged commit.
"""

import os
import random
import shutil
import tempfile
from pathlib import Path

from quire_bookie.errors import StartupError
from quire_bookie.metadata.local.database import Database
from quire_bookie.metadata.local.opening import open_database
from quire_bookie.metadata.local.repair import carry_out, plan_repair
from tests.sim.history import HistoryError
from tests.sim.loop import SimLoop
from tests.sim.plan import Step
from tests.support.metadata_files import (
    DAMAGES,
    FILES,
    Content,
    Groups,
    Recorder,
    content_of,
    damage,
    random_write,
)

RUNS = (3, 7)
GROUPS = (1, 12)
MEMORY = "/dev/shm"
"""Syncs are free there; this module, not the file system, decides what a power cut loses."""


async def run(loop: SimLoop, seed: int) -> list[str]:
    """Run one seed and return its events. HistoryError if an acknowledged commit is lost or an intact store refused."""
    chance = random.Random(seed)
    place = Path(tempfile.mkdtemp(dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
    try:
        return _runs(loop, chance, place)
    finally:
        shutil.rmtree(place)


def _runs(loop: SimLoop, chance: random.Random, place: Path) -> list[str]:
    runs = _Runs(chance, place)
    drawn = [_drawn(chance, float(number)) for number in range(chance.randint(*RUNS))]
    chosen = {step.at_s: step for pair in drawn for step in loop.plan.choose(pair)}
    for number in range(len(drawn)):
        cut, harm = (chosen.get(at_s) for at_s in (float(number), number + 0.5))
        runs.write(number, cut_at=None if cut is None else int(cut.value))
        runs.start(harm)
        for step in (cut, harm):
            if step is not None:
                loop.plan.events.append((step.at_s, str(step)))
    return runs.happened


def _drawn(chance: random.Random, at_s: float) -> list[Step]:
    """Draw the end of a run: a power cut at one of its steps, damage of a file afterwards, or both."""
    cut = Step(at_s, "cut", value=chance.randrange(4, 80))
    harm = Step(at_s + 0.5, "damage", chance.choice(FILES), chance.choice(DAMAGES), chance.randrange(1 << 30))
    return chance.choice(([cut], [cut, harm], [harm]))


class _Runs:
    """Owns the store from run to run. `legal`: contents that a start may find."""

    def __init__(self, chance: random.Random, place: Path) -> None:
        self._chance = chance
        self._place = place
        self._groups = Groups()
        self._folder = place / "start"
        self._folder.mkdir()
        self._older: Path | None = None
        self._store_id = chance.randbytes(16)
        self.legal: list[Content] = [{}]
        self.happened: list[str] = []

    def write(self, number: int, cut_at: int | None) -> None:
        """Open, write and close. With `cut_at`, leave the folder as a power cut at that step would."""
        steps, after = 0, self._place / f"after {number}"
        known: list[Content] = [self.legal[0]]
        cut_known: list[int] = []

        def hook() -> None:
            nonlocal steps
            steps += 1
            if steps == cut_at:
                recorder.cut(self._folder, after, self._chance)
                cut_known.append(len(known) - 1)

        recorder = Recorder(hook)
        with recorder.recording():
            store = self._open()
            known = [content_of(store)]
            for group in range(self._chance.randint(*GROUPS)):
                writes = [random_write(self._chance, group) for _ in range(self._chance.randint(1, 4))]
                self._groups.run(store, *writes)
                known.append(content_of(store))
                store.tidy()
                if cut_known:
                    break
            store.close()
        if not cut_known:
            shutil.copytree(self._folder, after)  # the end of a process loses nothing of the page cache
        at = cut_known[0] if cut_known else len(known) - 1
        self.legal = known[at : at + 2] if cut_known else known[-1:]
        self.happened.append(f"{len(known) - 1} groups, {'cut' if cut_known else 'closed'}")
        self._older, self._folder = (self._older or after, after) if number % 2 else (after, after)

    def start(self, harm: Step | None) -> None:
        """Apply the damage, then check what a start finds."""
        target = self._place / f"{self._folder.name} next"
        shutil.copytree(self._folder, target)
        done = ""
        if harm is not None:
            done = damage(target, harm.who, harm.other, self._older, random.Random(int(harm.value)))
        self._folder = target
        refused = False
        try:
            store = self._open()
        except StartupError as error:
            if not done:
                raise HistoryError(f"an intact store is refused: {error}") from error
            refused = True
            plan = plan_repair(target)
            if plan.last is None or plan.lost is not None:
                raise HistoryError(f"after {done} the repair lacks commits: {plan.problem}, {plan.lost}") from error
            carry_out(target, plan, "20260101T000000Z")
            store = self._open()
        found = content_of(store)
        store.close()
        if found not in self.legal:
            lost = len(self.legal[0].items() - found.items())
            raise HistoryError(f"after {done or 'no damage'} {lost} acknowledged nodes are lost or outdated")
        self.legal = [found]
        harmed = f"{harm.who} {harm.other}" if harm is not None and done else "whole"
        self.happened.append(f"{harmed}: {'repaired' if refused else 'started'}, {len(found)} nodes")

    def _open(self) -> Database:
        return open_database(self._folder, lambda: self._store_id)
