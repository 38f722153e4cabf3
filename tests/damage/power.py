"""Power cuts under a real `quire standalone`: its file system is shut down without a flush, and mounted again.

The file system is ext4 in a file, behind a loop device. EXT4_IOC_SHUTDOWN with "no log flush" stops it immediately:
unsynced data is lost, as on a machine that loses power. Needs root and loop devices.
"""

import fcntl
import json
import os
import random
import shutil
import struct
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulsar

from tests.damage.outcome import LossError
from tests.support.standalone import StandaloneProcess

SHUTDOWN_IOCTL = 0x8004587D
NO_LOG_FLUSH = 2
IMAGE_BYTES = 3 << 30
CHECKED_ROUNDS = 3
"""Number of last rounds whose topics are read after each cut; every `FULL_CHECK_EVERY` rounds, all topics are."""
FULL_CHECK_EVERY = 25
SEND_S = (0.05, 1.5)
SETTINGS = ("journalMaxSizeMB=32", "dbStorage_writeCacheMaxSizeMb=24")
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def why_not() -> str | None:
    """Return why power cuts cannot be simulated here, or None."""
    if os.geteuid() != 0:
        return "it needs root to mount a file system"
    for tool in ("losetup", "mkfs.ext4", "mount", "umount"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if not os.path.exists("/dev/loop-control"):
        return "there are no loop devices"
    return None


class CutDisk:
    """A mounted file system whose power can be cut."""

    def __init__(self, folder: Path) -> None:
        self.image = folder / "disk.img"
        self.mount_point = folder / "disk"

    def create(self) -> None:
        """Create the file system and mount it."""
        self.mount_point.mkdir()
        with self.image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(self.image))
        self.mount()

    def mount(self) -> None:
        """Mount; ext4 replays its log."""
        _run("mount", "-o", "loop", str(self.image), str(self.mount_point))

    def cut(self) -> None:
        """Shut it down at once, without a flush."""
        handle = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, SHUTDOWN_IOCTL, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(handle)

    def unmount(self) -> None:
        """Unmount the file system after a cut, or when it is idle."""
        for _ in range(100):
            if subprocess.run(["umount", str(self.mount_point)], capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.1)
        _run("umount", str(self.mount_point))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@dataclass
class Written:
    """Records the messages of one round, and which were acknowledged."""

    seed: int
    sent: int = 0
    acked: set[int] = field(default_factory=set)

    def body(self, number: int) -> bytes:
        """Return the unique content of a message."""
        chance = random.Random(self.seed << 32 | number)
        return b"%d/%d/" % (self.seed, number) + chance.randbytes(chance.randrange(20, 3000))

    @property
    def topic(self) -> str:
        """The topic of the round."""
        return f"persistent://public/default/round-{self.seed}"


class PowerCuts:
    """Runs rounds on one file system. The state after each round is stored in a file, so that a run can be resumed."""

    def __init__(self, folder: Path, first_seed: int) -> None:
        self._folder = folder
        self._state = folder / "power.json"
        self._first_seed = first_seed
        self._disk = CutDisk(folder)
        self._rounds: list[Written] = []
        self.acknowledged = 0
        self.checked = 0
        (folder / "log").mkdir(parents=True, exist_ok=True)
        self._server = StandaloneProcess(folder / "log", settings=SETTINGS)
        self._server.data = self._disk.mount_point / "data"
        command = self._server._command
        command[command.index("--data") + 1] = str(self._server.data)

    @property
    def done(self) -> int:
        """The number of completed rounds."""
        return len(self._rounds)

    def begin(self) -> None:
        """Create the disk, or mount the one of an earlier run; start the process."""
        if self._state.exists():
            for seed, sent, acked in json.loads(self._state.read_text()):
                self._rounds.append(Written(seed, sent, set(acked)))
            self._disk.mount()
        else:
            self._disk.create()
        self._server.start()

    def end(self) -> None:
        """Check everything again, stop, unmount."""
        try:
            self._check(self._rounds)
        finally:
            self.close()

    def close(self) -> None:
        """Stop the process and unmount."""
        self._server.close()
        self._disk.unmount()

    def round(self) -> None:
        """Write, cut the power, start, compare. LossError if an acknowledged message is lost or changed."""
        written = Written(self._first_seed + len(self._rounds))
        chance = random.Random(written.seed)
        client = pulsar.Client(self._server.url, logger=QUIET, operation_timeout_seconds=60)
        writer = _Writer(client, written, chance)
        writer.start(chance.uniform(*SEND_S))
        self._disk.cut()
        self._server.kill()
        writer.stop()
        client.shutdown()
        self._disk.unmount()
        self._disk.mount()
        self._server.start()
        self._rounds.append(written)
        self.acknowledged += len(written.acked)
        everything = len(self._rounds) % FULL_CHECK_EVERY == 0
        self._check(self._rounds if everything else self._rounds[-CHECKED_ROUNDS:])
        self._state.write_text(json.dumps([[each.seed, each.sent, sorted(each.acked)] for each in self._rounds]))

    def _check(self, rounds: list[Written]) -> None:
        client = pulsar.Client(self._server.url, logger=QUIET, operation_timeout_seconds=60)
        for written in rounds:
            if written.sent:
                self._check_one(client, written)
        client.close()

    def _check_one(self, client: Any, written: Written) -> None:
        """Check that each acknowledged message is stored once, unchanged, in order, and that none was invented."""
        reader = client.create_reader(written.topic, pulsar.MessageId.earliest)
        found: list[int] = []
        while reader.has_message_available():
            data = reader.read_next(60_000).data()
            number = int(data.split(b"/", 2)[1])
            if data != written.body(number):
                raise LossError(f"seed {written.seed}: message {number} changed")
            found.append(number)
        reader.close()
        if found != sorted(set(found)):
            raise LossError(f"seed {written.seed}: messages are out of order or duplicated")
        if missing := written.acked - set(found):
            raise LossError(f"seed {written.seed}: {len(missing)} acknowledged messages are lost: {min(missing)}...")
        self.checked += len(found)


class _Writer:
    """Sends from a separate thread until it is stopped."""

    def __init__(self, client: Any, written: Written, chance: random.Random) -> None:
        self._written = written
        self._producer = client.create_producer(
            written.topic,
            send_timeout_millis=0,
            block_if_queue_full=False,
            max_pending_messages=1000,
            batching_enabled=chance.random() < 0.5,
        )
        self._stopped = threading.Event()
        self._first = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def start(self, seconds: float) -> None:
        """Start sending; return `seconds` after the first acknowledgement."""
        self._thread.start()
        if not self._first.wait(60):
            raise LossError(f"seed {self._written.seed}: nothing was acknowledged within 60 s")
        time.sleep(seconds)

    def stop(self) -> None:
        """No more sends; later acknowledgements do not count, there are none."""
        self._stopped.set()
        self._thread.join()

    def _send(self) -> None:
        while not self._stopped.is_set():
            number = self._written.sent
            try:
                self._producer.send_async(self._written.body(number), self._acked(number))
            except pulsar.ProducerQueueIsFull:
                time.sleep(0.001)
                continue
            except pulsar.PulsarException:
                return
            self._written.sent += 1

    def _acked(self, number: int) -> Any:
        def done(result: Any, _: Any) -> None:
            if result == pulsar.Result.Ok:
                with self._lock:
                    self._written.acked.add(number)
                self._first.set()

        return done
