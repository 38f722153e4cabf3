"""Random faults for a given time, drawn from a seed, without a human action: no message is lost, and all recovers.

Runs only with `QUIRE_E2E_CHAOS_S`, the time in seconds; `QUIRE_E2E_SEED` repeats a run's choices.
"""

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import BOUNDED_STORAGE, FOLDER, NAMESPACE_PREFIX, stacks
from tests.e2e.faults import FAULTS, Fault, MachineKilled
from tests.e2e.kube import Cluster, until
from tests.e2e.stack import Stack

CHAOS_S = float(os.environ.get("QUIRE_E2E_CHAOS_S", "0"))
SEED = int(os.environ.get("QUIRE_E2E_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
ROUND_S = 240.0
"""Between two checks of the content, for which everything must recover."""
WELL_S = 900.0
API_S = 180.0
AT_ONCE = 3
PAUSE_S = (2.0, 15.0)
RATE = 50
READING_S = 3000.0


@pytest.fixture
def chaos(cluster: Cluster) -> Iterator[Stack]:
    """A stack of five bookies, a broker and three members of etcd; the load is where no machine is killed."""
    if not CHAOS_S:
        pytest.skip("set QUIRE_E2E_CHAOS_S to the seconds of a run of random faults")
    where = f"{NAMESPACE_PREFIX}chaos-{os.getpid()}"
    made = Stack(
        cluster.within(where),
        replicas=5,
        rate=RATE,
        etcd_members=3,
        load_apart=True,
        pool_spec={"storage": BOUNDED_STORAGE},
    )
    stacks.append(made)
    made.create()
    made.wait_until_well(WELL_S)
    yield made
    made.broken = True  # another scenario expects another stack


class Run:
    """Draws faults, begins and ends them, and lets the stack recover."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self.stack, self.chance = stack, random.Random(seed)
        self.active: list[tuple[float, Fault]] = []
        self.log: list[dict[str, Any]] = []
        self.recoveries_s: list[float] = []
        self.pauses_s: list[float] = []
        self._start_s = time.monotonic()

    def note(self, what: str, **more: Any) -> None:
        """Record and print an event."""
        self.log.append({"at_s": round(time.monotonic() - self._start_s, 1), "what": what, **more})
        print(json.dumps(self.log[-1]), flush=True)

    def step(self) -> None:
        """Begin one fault, and wait for a random time."""
        kind = self.chance.choices(FAULTS, [one.weight for one in FAULTS])[0]
        fault = kind(self.stack, self.chance)
        if kind.destroys:
            self.recover()
        while len(self.active) >= AT_ONCE:
            self._wait(1.0)
        seconds = fault.begin()
        self.note(kind.name, about=fault.about, seconds=round(seconds, 1))
        if kind.is_alone:
            time.sleep(seconds)
            fault.end()
            until("the API server responds", lambda: self.stack.cluster.api.text("/readyz"), API_S)
        elif seconds:
            self.active.append((time.monotonic() + seconds, fault))
        if kind.destroys:
            self.recover()
        self._wait(self.chance.uniform(*PAUSE_S))

    def _wait(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            self._end(time.monotonic())
            time.sleep(0.5)

    def _end(self, until_s: float) -> None:
        due = [one for one in self.active if one[0] <= until_s]
        for one in sorted(due, key=lambda one: not isinstance(one[1], MachineKilled)):
            if one[1].can_end():
                self.active.remove(one)
                one[1].end()

    def end_all(self) -> None:
        """Repair the environment."""
        self._end(float("inf"))

    def recover(self) -> None:
        """End all faults and wait until the stack is well by itself."""
        self.end_all()
        start_s = time.monotonic()
        self.stack.wait_until_well(WELL_S)
        self.stack.goes_on()
        self.recoveries_s.append(time.monotonic() - start_s)
        self.pauses_s.append(self.stack.longest_pause_s())
        self.note("well", after_s=round(self.recoveries_s[-1], 1), longest_pause_s=self.pauses_s[-1])


@pytest.mark.timeout(CHAOS_S + WELL_S + READING_S)
def test_random_faults_cost_no_message_and_everything_recovers_by_itself(
    chaos: Stack, measured: Callable[..., None]
) -> None:
    run = Run(chaos, SEED)
    run.note("begin", seed=SEED, seconds=CHAOS_S)
    deadline_s = time.monotonic() + CHAOS_S
    try:
        while time.monotonic() < deadline_s:
            round_ends_s = min(deadline_s, time.monotonic() + ROUND_S)
            while time.monotonic() < round_ends_s:
                run.step()
            run.recover()
            chaos.check()
            run.note("checked", acknowledged=chaos.acknowledged())
        messages = chaos.check_all()
        run.note("end", messages=messages)
    finally:
        run.end_all()
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"chaos-{SEED}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in run.log))
    counts = Counter(line["what"] for line in run.log if "seconds" in line and line["what"] != "begin")
    for name, count in sorted(counts.items()):
        measured(f"faults: {name}", float(count), "")
    measured(f"seed {SEED}; faults in all", float(sum(counts.values())), "")
    measured("messages read again from the beginning", float(messages), "")
    measured("longest recovery after all faults ended", max(run.recoveries_s))
    measured("longest pause of acknowledgements", max(run.pauses_s))
