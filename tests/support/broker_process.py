"""A whole standalone in a process of its own, for tests with third-party clients.

As a script (`python broker_process.py FOLDER BOOKIES [key=value ...]`) it serves until its standard input closes, and
prints one JSON line with its ports. As a module it starts that script.
"""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from quire_bookie.settings.disks import DiskRules
from tests.support.roomy_disk import NEVER_FULL


class BrokerProcess:
    """One running standalone. Its log is `log`."""

    def __init__(self, folder: Path, *, bookies: int = 1, **options: Any) -> None:
        self.log = folder / "broker.log"
        words = [f"{key}={json.dumps(value)}" for key, value in options.items()]
        root = str(Path(__file__).resolve().parents[2])
        command = [sys.executable, "-m", "tests.support.broker_process", str(folder / "data"), str(bookies), *words]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log.open("ab"), cwd=root
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(10)
            raise AssertionError(f"the broker did not start:\n{self.log.read_text()[-6000:]}")
        ports = json.loads(line)
        self.url = f"pulsar://127.0.0.1:{ports['port']}"
        self.http = f"http://127.0.0.1:{ports['http_port']}"
        self.port = int(ports["port"])

    def rest(self, method: str, path: str, body: Any = None) -> Any:
        """One REST call; HTTPError for codes from 400 on. JSON, or text where it is none."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.http + path, data, {"Content-Type": "application/json"}, method=method)
        with urlopen(request, timeout=30) as answer:
            text = answer.read().decode()
        try:
            return json.loads(text) if text else None
        except ValueError:
            return text

    def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Code and reason of a REST call that is refused."""
        try:
            answered = self.rest(method, path, body)
        except HTTPError as failure:
            return failure.code, json.loads(failure.read())["reason"]
        raise AssertionError(f"{method} {path} is answered: {answered}")

    def close(self) -> None:
        """Stop it in order; kill it when that takes too long."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


async def _serve(folder: Path, bookies: int, options: dict[str, Any]) -> None:
    import asyncio
    from dataclasses import replace

    from quire_bookie.env.chance import SystemChance
    from quire_bookie.env.clock import SystemClock
    from quire_bookie.env.local_disk import LocalDisk
    from quire_bookie.metadata.local.store import LocalMetadataStore
    from quire_bookie.server import BookieSettings
    from quire_bookie.settings.client import ClientSettings
    from quire_bookie.settings.journal import JournalSettings
    from quire_broker.server.broker import BrokerSettings
    from quire_broker.settings.clients import SessionSettings
    from quire_broker.settings.dispatch import DispatchSettings
    from quire_broker.settings.entry_metadata import parse_interceptors
    from quire_broker.settings.managed_ledger import ManagedLedgerSettings
    from quire_broker.standalone import StandaloneSettings, run_standalone, with_quorums
    from quire_broker.topic.topic import TopicSettings
    from quire_broker.topic.topics import TopicsSettings

    topic = TopicSettings(
        deduplication=bool(options.get("deduplication", False)),
        subscriptions=DispatchSettings(batch_index_acks=bool(options.get("batch_index_acks", False))),
        entry_metadata=parse_interceptors(options.get("interceptors", "")),
    )
    broker = BrokerSettings(
        metadata_url=f"local:{folder}/metadata",
        listen="127.0.0.1",
        port=0,
        http_port=0,
        advertise="127.0.0.1",
        session=SessionSettings(
            message_bytes_max=int(options.get("message_bytes_max", 5 << 20)),
            entry_metadata_sent=bool(options.get("entry_metadata_sent", False)),
        ),
        topics=TopicsSettings(topic=topic, ledger=with_quorums(ManagedLedgerSettings(), bookies)),
    )
    pattern = BookieSettings(
        data_dir="",
        disks=DiskRules(threshold=NEVER_FULL),
        listen="127.0.0.1",
        advertise="127.0.0.1",
        journal=replace(JournalSettings(), file_bytes=64 << 20),
    )
    client = ClientSettings(distinct_machines=bool(options.get("distinct_machines", False)))
    settings = StandaloneSettings(str(folder), bookies, bookie_port=0, bookie=pattern, broker=broker, client=client)
    metadata = await LocalMetadataStore.open(folder / "metadata")
    disk = LocalDisk()
    running = await run_standalone(settings, metadata=metadata, disk=disk, clock=SystemClock(), chance=SystemChance())
    print(json.dumps({"port": running.broker.port, "http_port": running.broker.http_port}), flush=True)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    if options.get("profile"):
        import cProfile

        profile = cProfile.Profile()
        profile.enable()
    await ended.wait()
    if options.get("profile"):
        profile.disable()
        profile.dump_stats(options["profile"])
    loop.remove_reader(sys.stdin.fileno())
    await running.stop()
    await metadata.close()
    disk.close()


if __name__ == "__main__":
    import asyncio

    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    given = {key: json.loads(value) for key, value in (word.split("=", 1) for word in sys.argv[3:])}
    if given.get("uvloop", True):
        import uvloop

        uvloop.run(_serve(Path(sys.argv[1]), int(sys.argv[2]), given))
    else:
        asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2]), given))
