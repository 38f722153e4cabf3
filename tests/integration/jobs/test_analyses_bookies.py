"""An audit of real bookies with HTTP ports: it finds exactly the inconsistencies that the test created."""

import asyncio
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, Segment
from quire_bookie.settings.metadata import MetadataSettings
from quire_jobs.analytics import audit
from quire_jobs.analytics.bookie_tasks import TaskAddress, ask_bookies
from quire_jobs.job import Outcome, Summary, parse_parameters
from quire_jobs.tables import TableTarget, open_table
from quire_jobs.tables.data_files import read_files
from tests.support.etcd_server import EtcdServer, require_etcd
from tests.support.polling import until
from tests.support.ports import free_ports
from tests.support.standalone import QUIRE
from tests.unit.jobs.analytics.quiet_progress import QuietProgress

ENTRIES = 10
NOWHERE = LedgerId(9_000)
GUARD_S = 60
OPTIONS = ("--advertise", "127.0.0.1", *("--set", "zkTimeout=2000"), *("--set", "gcWaitTime=3600000"))
Finding = tuple[str, int, str | None]


@dataclass
class Bookies:
    """Three bookies with an HTTP port, and the ledgers that the tests wrote."""

    metadata: str
    processes: dict[BookieId, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    ledgers: dict[str, LedgerId] = field(default_factory=dict)
    places: dict[str, tuple[BookieId, ...]] = field(default_factory=dict)
    """The bookies of each ledger."""

    def start(self, folder: Path) -> None:
        """Start one more bookie and wait until it responds."""
        port, http = free_ports(2)
        words = [QUIRE, "bookie", "start", "--metadata", self.metadata, "--data", str(folder), *OPTIONS]
        words += ["--set", "diskUsageThreshold=0.999", "--port", str(port), "--http-port", str(http)]
        log = folder.with_suffix(".log")
        with log.open("wb") as output:
            process = subprocess.Popen(words, stdout=output, stderr=output)
        try:
            until(
                lambda: _answers(f"http://127.0.0.1:{http}/readyz"),
                lambda: log.read_text()[-4000:],
                timeout_s=GUARD_S,
                process=process,
            )
            with urllib.request.urlopen(f"http://127.0.0.1:{http}/api/v1/quire/cookie", timeout=GUARD_S) as answer:
                self.processes[BookieId(json.load(answer)["bookie"])] = process
        except BaseException:
            process.kill()
            raise

    @asynccontextmanager
    async def store(self) -> AsyncIterator[MetadataStore]:
        """Open the metadata store."""
        opened = await open_metadata_store(self.metadata, MetadataSettings())
        try:
            yield opened
        finally:
            await opened.close()

    async def write(self) -> None:
        """Write closed ledgers by name, with two replicas each; then make the metadata of all but one inconsistent."""
        async with self.store() as store:
            client = await LedgerClient.open(store, clock=SystemClock(), chance=SystemChance())
            nodes = LedgerNodes(store)
            for name in ("whole", "orphan", "short", "divergent", "moved"):
                writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
                for number in range(ENTRIES):
                    await writer.append(b"%d" % number)
                await writer.close()
                self.ledgers[name] = writer.ledger_id
                metadata = (await nodes.read(writer.ledger_id)).value
                self.places[name] = metadata.segments[0].ensemble
            await client.close()
            await nodes.delete(self.ledgers["orphan"])
            await self._change(nodes, "short", last_entry=EntryId(ENTRIES + 4))
            await self._change(nodes, "divergent", last_entry=EntryId(ENTRIES - 6))
            stays, goes = self.places["moved"]
            (other,) = set(self.processes) - {stays, goes}
            await self._change(nodes, "moved", segments=(Segment(EntryId(0), (stays, other)),))
            whole: LedgerMetadata = (await nodes.read(self.ledgers["whole"])).value
            await nodes.create(NOWHERE, whole)
            self.ledgers["nowhere"], self.places["nowhere"] = NOWHERE, self.places["whole"]

    async def _change(self, nodes: LedgerNodes, name: str, **changes: Any) -> None:
        found = await nodes.read(self.ledgers[name])
        await nodes.update(self.ledgers[name], replace(found.value, **changes), found.version)

    def close(self) -> None:
        """Kill all bookies."""
        for process in self.processes.values():
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def bookies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bookies]:
    folder = tmp_path_factory.mktemp("bookies")
    (folder / "etcd").mkdir()
    etcd = EtcdServer(require_etcd(), folder / "etcd")
    etcd.start()
    made = Bookies(f"etcd://{etcd.endpoint}")
    try:
        for number in range(3):
            made.start(folder / f"b{number}")
        asyncio.run(made.write())
        yield made
    finally:
        made.close()
        etcd.kill()


def audited(spark: SparkSession, bookies: Bookies, folder: Path, /, **given: Any) -> tuple[Summary, set[Finding]]:
    """Return the summary, and kind, ledger and subject of each finding."""
    usual = {"metadata": bookies.metadata, "output": f"file://{folder}", "runId": "r"}
    summary = audit.run(spark, parse_parameters(audit.Parameters, usual | given), QuietProgress())
    table = open_table(TableTarget.parse("parquet", f"file://{folder}/audit/r/tables/findings"))
    schema = table.schema()
    assert schema is not None
    rows = [row for batch in read_files(table.files(), schema, table.store) for row in batch.to_pylist()]
    found = {(row["kind"], row["ledger"], row["subject"]) for row in rows}
    assert len(found) == len(rows), "each once"
    return summary, found


def expected(bookies: Bookies) -> set[Finding]:
    """Return the expected findings."""
    ledgers, places = bookies.ledgers, bookies.places
    stays, goes = places["moved"]
    (other,) = set(bookies.processes) - {stays, goes}
    found: set[Finding] = {("lost ledger", NOWHERE, None)}
    found |= {("missing replica", NOWHERE, bookie) for bookie in places["nowhere"]}
    found |= {("orphan", ledgers["orphan"], bookie) for bookie in places["orphan"]}
    found |= {("short replica", ledgers["short"], bookie) for bookie in places["short"]}
    found |= {("divergent replica", ledgers["divergent"], bookie) for bookie in places["divergent"]}
    return found | {("missing replica", ledgers["moved"], other), ("stray replica", ledgers["moved"], goes)}


def test_each_difference_between_metadata_and_bookies_is_found(
    spark: SparkSession, bookies: Bookies, tmp_path: Path
) -> None:
    summary, found = audited(spark, bookies, tmp_path)
    assert summary.outcome is Outcome.SUCCEEDED and summary.problems == []
    assert found == expected(bookies)
    sizes = {"ledgers": 5, "replicas": 10, "bookies_silent": 0, "objects": 0, "ledgers_read_through": 0}
    assert summary.counts == sizes | {"findings_lost": 1, "findings_at_risk": 7, "findings_waste": 3}
    metrics = (tmp_path / "audit/metrics.prom").read_text()
    assert 'quire_analytics_audit_findings{kind="missing replica"} 3.0\n' in metrics
    assert 'quire_analytics_audit_findings{kind="damaged replica"} 0.0\n' in metrics


def test_a_deep_audit_reads_every_replica(spark: SparkSession, bookies: Bookies, tmp_path: Path) -> None:
    summary, found = audited(spark, bookies, tmp_path, bookies=False, deepLedgers=100)
    assert summary.counts["ledgers_read_through"] == 5 and summary.problems == []
    ledgers, places = bookies.ledgers, bookies.places
    (other,) = set(bookies.processes) - set(places["moved"])
    damaged = {(ledgers["short"], bookie) for bookie in places["short"]}
    damaged |= {(NOWHERE, bookie) for bookie in places["nowhere"]} | {(ledgers["moved"], other)}
    assert found == {("damaged replica", ledger, bookie) for ledger, bookie in damaged}


def test_a_bookie_that_spark_asked_twice_counts_as_silent(spark: SparkSession, bookies: Bookies) -> None:
    responses = ask_bookies(spark, TaskAddress(bookies.metadata, ""), sorted(bookies.processes))
    assert (responses.held.count(), responses.silent.count()) == (10, 0)
    responses.end()  # simulates the loss of executors with their results
    assert responses.held.count() == 0
    silent = {row.bookie: row.reason for row in responses.silent.collect()}
    assert set(silent) == set(bookies.processes) and all("asked it again" in reason for reason in silent.values())


def test_no_finding_concerns_a_silent_bookie(spark: SparkSession, bookies: Bookies, tmp_path: Path) -> None:
    gone = bookies.places["short"][0]
    bookies.processes[gone].kill()
    summary, found = audited(spark, bookies, tmp_path)
    assert summary.outcome is Outcome.PARTLY and summary.counts["bookies_silent"] == 1
    assert [problem.subject for problem in summary.problems] == [gone]
    assert found == {one for one in expected(bookies) if one[2] != gone and one[0] != "lost ledger"}
