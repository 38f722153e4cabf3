"""The kind `audit`: compares metadata, bookies and buckets. Read-only: repairs and removes nothing."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from quire_bookie.model import BookieId
from quire_jobs.analytics.output import Output, open_output
from quire_jobs.analytics.parameters import AnalysisParameters
from quire_jobs.analytics.publishing import Findings, Gauge, publish
from quire_jobs.analytics.report.bars import Bar, bars
from quire_jobs.analytics.report.page import Advice, Cell, Level, Page, Section, Table, Tile
from quire_jobs.analytics.report.units import bytes_text, count_text
from quire_jobs.errors import JobOptionsError
from quire_jobs.job import Problem, Progress, Summary
from quire_jobs.quantities import Duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from quire_jobs.analytics.bookie_tasks import BookieResponses
    from quire_jobs.analytics.metadata_tables import MetadataTables

KIND = "audit"
_SHOWN_MAX = 200
_UNKNOWN_MAX = 1000
"""Maximum number of unreadable replicas that are listed."""
LOST, AT_RISK, WASTE = "lost", "at-risk", "waste"
Row = Mapping[str, Any]
REMEDIES: Mapping[str, str] = {
    "lost ledger": "Start stopped bookies again, with their disks. `quire cluster unrecoverable` shows the progress.",
    "lost object": "Restore the object from a version or a backup of the bucket: no other copy exists.",
    "listed without metadata"
    "": "After a restore of metadata: `quire metadata orphans list`. Otherwise readers stop here.",
    "missing replica": "Auto-recovery copies it again: check with `quire cluster status` that it is enabled.",
    "short replica": "Auto-recovery copies the missing entries: `quire ledger check LEDGER` lists them.",
    "unreadable replica": "Run `quire bookie scrub` there; healthy replicas replace damaged ones.",
    "divergent replica": "Keep the bookie's disks, run `quire ledger check LEDGER`: two owners may have written it.",
    "damaged replica": "Auto-recovery rewrites it from healthy replicas; check that bookie's disks.",
    "missing object": "Offload the ledger again before bookies delete their copies; raise the deletion lag meanwhile.",
    "truncated object"
    "": "Offload the ledger again before bookies delete their copies; raise the deletion lag meanwhile.",
    "counts differ": "`quire ledger info LEDGER` shows the count that applies; a reader of the topic may stop early.",
    "orphan": "The bookie deletes it after gcQuarantineSeconds; see `quire bookie quarantine list` and its log.",
    "stray replica": "The bookie's garbage collection deletes it once the other bookies have all copies.",
    "unlisted ledger": "No topic reads it. Check the topic, then `quire ledger delete LEDGER`.",
    "unused cursor ledger": "No cursor reads it. `quire ledger delete LEDGER`.",
    "orphan object"
    "": "The offload job's sweep removes objects of its attempts. Remove others by hand, if no other cluster "
    "uses them; after a restore of metadata one may be the only copy of a ledger.",
}


class Parameters(AnalysisParameters):
    """Compare metadata, bookies and buckets: orphans, missing and divergent replicas."""

    buckets: tuple[str, ...] = Field(
        default=(),
        description="More buckets to list, s3://bucket or file:///folder. [buckets that ledgers refer to]",
    )
    bookies: bool = Field(
        default=True, description="Ask bookies for their ledgers. false: compare metadata and buckets only."
    )
    objects: bool = Field(default=True, description="List buckets. false: compare metadata and bookies only.")
    grace: Duration = Field(
        default=3600.0, ge=0, description="Report a ledger without owner if it is older than this, e.g. 1h."
    )
    deep_ledgers: int = Field(
        default=0,
        ge=0,
        description="Read every replica of every entry of this many closed ledgers, sampled by the run.",
    )
    deep_rate: float = Field(default=2000.0, gt=0, description="Reads per second of these replicas.")


def run(spark: "SparkSession", parameters: Parameters, progress: Progress) -> Summary:
    """Run the audit; see `quire_jobs.job`."""
    if not parameters.metadata:
        raise JobOptionsError(
            "the parameter 'metadata' is missing; give the metadata store of the cluster, etcd://host:2379, or a "
            "broker, http://host:8080"
        )
    output = open_output(KIND, parameters)
    read = Read()
    try:
        _read(spark, parameters, read, progress)
        return analyse(spark, output, parameters, read, progress)
    finally:
        read.end()


def _read(spark: "SparkSession", parameters: Parameters, read: "Read", progress: Progress) -> None:
    """Read everything to compare. Reads metadata before and after the bookies, and leaves out what changed
    meanwhile."""
    import random

    from quire_jobs.analytics.bookie_tasks import TaskAddress, ask_bookies, check_replicas
    from quire_jobs.analytics.metadata_tables import MetadataTables, unmark_trimmed
    from quire_jobs.analytics.object_tables import read_objects, targets_of
    from quire_jobs.analytics.reading import ClusterClients, ask_cluster

    where = TaskAddress(parameters.metadata, parameters.config)

    async def before(clients: ClusterClients) -> tuple[MetadataTables, list[BookieId]]:
        return await clients.tables(), await clients.questions.known() if parameters.bookies else []

    async def after(clients: ClusterClients) -> None:
        read.changed = drop_changed(
            read.tables, {int(ledger) async for page in clients.access.nodes.ids() for ledger in page}
        )
        if parameters.objects:
            given = parameters
            targets, wrong = targets_of(
                read.tables.targets, parameters.buckets, region=given.region, endpoint=given.endpoint
            )
            objects, failed = await read_objects(targets)
            await unmark_trimmed(clients.cluster.metadata, read.tables, {row[0] for row in objects})
            read.unknown = wrong | failed
            read.objects = None if read.unknown else objects

    progress.begin("reading metadata", None, "ledgers")
    read.tables, bookies = ask_cluster(parameters, before)
    progress.advance(len(read.tables.stored))
    if parameters.bookies:
        progress.begin("asking bookies", len(bookies), "bookies")
        read.responses = ask_bookies(spark, where, bookies)
        progress.advance(len(bookies))
    progress.begin("reading buckets, and metadata once more", None, "objects")
    ask_cluster(parameters, after)
    progress.advance(len(read.objects or []))
    closed = [row[0] for row in read.tables.stored if row[1] == "closed"]
    chosen = sorted(random.Random(parameters.run_id).sample(closed, min(parameters.deep_ledgers, len(closed))))
    if chosen:
        progress.begin("reading replicas", len(chosen), "ledgers")
        read.checked = check_replicas(spark, where, chosen, parameters.deep_rate).persist()
        read.unknown = read.unknown | _unchecked(read.checked)
        read.ledgers_checked = len(chosen)
        progress.advance(len(chosen))


def _unchecked(checked: "DataFrame") -> dict[str, str]:
    rows = checked.where("unknown IS NOT NULL").orderBy("ledger", "bookie").limit(_UNKNOWN_MAX).collect()
    return {f"ledger {row.ledger}{f' at bookie {row.bookie}' if row.bookie else ''}": row.unknown for row in rows}


def drop_changed(tables: "MetadataTables", present: set[int]) -> set[int]:
    """Remove ledgers that were deleted while bookies were asked. Return their ids and those of new ledgers.

    Bookies may hold these ledgers without them being orphans or lost. `present`: the ids that have metadata now. A
    ledger with unreadable metadata is present, so it is not an orphan either.
    """
    known = {row[0] for row in tables.stored}
    gone = known - present
    tables.stored = [row for row in tables.stored if row[0] not in gone]
    tables.expected = [row for row in tables.expected if row[0] not in gone]
    tables.ledgers = [row for row in tables.ledgers if row[2] not in gone]
    return known ^ present


class Read:
    """The data read so far. `objects` is None if a bucket could not be listed; then objects are not compared."""

    def __init__(self) -> None:
        from quire_jobs.analytics.metadata_tables import MetadataTables

        self.tables = MetadataTables()
        self.responses: BookieResponses | None = None
        self.changed: set[int] = set()
        self.objects: list[tuple[Any, ...]] | None = None
        self.checked: DataFrame | None = None
        self.ledgers_checked = 0
        self.unknown: dict[str, str] = {}

    def end(self) -> None:
        """Release the cached data."""
        if self.responses is not None:
            self.responses.end()
        if self.checked is not None:
            self.checked.unpersist()


def compared(spark: "SparkSession", parameters: Parameters, read: Read, held: "DataFrame | None") -> "DataFrame":
    """Return all findings."""
    from quire_jobs.analytics import columns
    from quire_jobs.analytics.figures import audit as figures
    from quire_jobs.analytics.reading import frame

    tables = read.tables
    stored = frame(spark, tables.stored, columns.STORED)
    ledgers = frame(spark, tables.ledgers, columns.LEDGERS)
    cursor_ledgers = frame(spark, tables.cursor_ledgers, "ledger long")
    unknown_owners = sorted(tables.unknown_owners)
    parts = figures.lists(ledgers, stored, cursor_ledgers, parameters.now_s, parameters.grace, unknown_owners)
    if read.responses is not None and held is not None:
        expected = frame(spark, tables.expected, columns.EXPECTED)
        parts += figures.replicas(stored, expected, held, read.responses.silent)
    if read.objects is not None:
        parts += figures.bucket(ledgers, frame(spark, read.objects, columns.OBJECTS))
    if read.checked is not None:
        parts.append(figures.damages(read.checked))
    return figures.all_of(parts)


def analyse(spark: "SparkSession", output: Output, parameters: Parameters, read: Read, progress: Progress) -> Summary:
    """Return the summary of the audit, after writing its tables and report."""
    from pyspark.sql import functions as F

    from quire_jobs.analytics.figures import audit as figures
    from quire_jobs.analytics.reading import frame

    held = None
    if read.responses is not None:
        changed = frame(spark, [(ledger,) for ledger in sorted(read.changed)], "ledger long")
        held = read.responses.held.join(F.broadcast(changed), "ledger", "left_anti")
    findings = compared(spark, parameters, read, held).persist()
    try:
        kinds = [row.asDict() for row in figures.by_kind(findings).collect()]
        kinds.sort(key=lambda row: ((LOST, AT_RISK, WASTE).index(row["severity"]), row["kind"]))
        rows = [row.asDict() for row in findings.limit(_SHOWN_MAX).collect()]
        silent = {} if read.responses is None else {row.bookie: row.reason for row in read.responses.silent.collect()}
        sizes = {
            "ledgers": len(read.tables.stored),
            "replicas": 0 if held is None else held.count(),
            "bookies_silent": len(silent),
            "objects": len(read.objects or []),
            "ledgers_read_through": read.ledgers_checked,
        }
        unsure = silent | read.unknown | read.tables.unreadable
        result = Findings(
            {"findings": findings, "kinds": figures.by_kind(findings).orderBy("severity", "kind")},
            page(parameters, sizes, kinds, rows, unsure, listed=read.objects is not None),
            totals(sizes, kinds),
            gauges(sizes, kinds),
            [Problem(subject=subject, reason=why, retry_helps=True) for subject, why in unsure.items()],
            details={"kinds": {row["kind"]: row["findings"] for row in kinds}},
        )
        return publish(output, result, progress)
    finally:
        findings.unpersist()


def totals(sizes: Mapping[str, int], kinds: Sequence[Row]) -> dict[str, int | float]:
    """Return the numbers of the summary."""
    by_severity = dict.fromkeys((LOST, AT_RISK, WASTE), 0)
    for row in kinds:
        by_severity[row["severity"]] += row["findings"]
    return {
        **sizes,
        "findings_lost": by_severity[LOST],
        "findings_at_risk": by_severity[AT_RISK],
        "findings_waste": by_severity[WASTE],
    }


def gauges(sizes: Mapping[str, int], kinds: Sequence[Row]) -> list[Gauge]:
    """Return metrics by kind; a kind without findings is 0, so that an alert can compare it."""
    found = [Gauge(name, f"{name.replace('_', ' ')}.", value) for name, value in totals(sizes, kinds).items()]
    counted = {row["kind"]: row["findings"] for row in kinds}
    return found + [
        Gauge("findings", "Findings by kind.", counted.get(kind, 0), {"kind": kind}) for kind in sorted(REMEDIES)
    ]


def page(
    parameters: Parameters,
    sizes: Mapping[str, int],
    kinds: Sequence[Row],
    rows: Sequence[Row],
    unsure: Mapping[str, str],
    *,
    listed: bool,
) -> Page:
    """Return the report."""
    total = totals(sizes, kinds)
    findings = sum(row["findings"] for row in kinds)
    return Page(
        "Audit",
        f"{parameters.metadata}: metadata, {'bookies' if parameters.bookies else 'no bookies'}, "
        f"{'buckets' if listed else 'no buckets'}",
        parameters.now_s,
        advice(kinds, unsure),
        [
            Tile("Lost", count_text(total["findings_lost"]), "no copy exists"),
            Tile("At risk", count_text(total["findings_at_risk"]), "fewer or differing copies"),
            Tile("Waste", count_text(total["findings_waste"]), "unneeded space"),
            Tile("Compared", f"{count_text(total['ledgers'])} ledgers", f"{count_text(total['replicas'])} replicas"),
        ],
        [
            _kind_section(kinds),
            Section(
                "Findings",
                "The most severe first.",
                table=Table(
                    ("Severity", "Kind", "Ledger", "Where", "What"),
                    [
                        (
                            row["severity"],
                            row["kind"],
                            Cell("–" if row["ledger"] is None else str(row["ledger"])),
                            row["subject"] or "",
                            row["detail"] or "",
                        )
                        for row in rows
                    ],
                    more=findings - len(rows),
                ),
            ),
        ],
        [
            "Bookies are compared by the last entry that they hold of each ledger, which finds missing and short "
            "replicas but no gap within one; deepLedgers reads every replica of every entry of some ledgers.",
            "A silent bookie is unknown, never missing. Of open ledgers only their existence is compared.",
            *(f"Unknown: {subject}: {why}" for subject, why in unsure.items()),
        ],
    )


def _kind_section(kinds: Sequence[Row]) -> Section:
    return Section(
        "Findings by kind",
        "Number of findings by kind.",
        bars(
            [
                Bar(
                    row["kind"],
                    [row["findings"] if row["severity"] == one else 0 for one in (LOST, AT_RISK, WASTE)],
                )
                for row in kinds
            ],
            count_text,
            label="Findings by kind",
            parts=("lost", "at risk", "waste"),
        ),
        Table(
            ("Kind", "Severity", "Findings", "Ledgers", "Payload", "What to do"),
            [
                (
                    row["kind"],
                    row["severity"],
                    Cell(count_text(row["findings"])),
                    Cell(count_text(row["ledgers"])),
                    Cell(bytes_text(row["bytes"])),
                    REMEDIES[row["kind"]],
                )
                for row in kinds
            ],
        ),
    )


def advice(kinds: Sequence[Row], unsure: Mapping[str, str]) -> list[Advice]:
    """Return one piece of advice per kind, with its remedy."""
    levels = {LOST: Level.ACT, AT_RISK: Level.ACT, WASTE: Level.WATCH}
    found = [
        Advice(levels[row["severity"]], f"{row['kind']}: {count_text(row['findings'])}", REMEDIES[row["kind"]])
        for row in kinds
    ]
    if unsure:
        found.append(
            Advice(
                Level.WATCH,
                f"{count_text(len(unsure))} bookies, buckets or records could not be read; they are listed below.",
                "Run the audit again when they respond: without them its result is incomplete.",
            )
        )
    return found or [Advice(Level.GOOD, "Metadata, bookies and buckets agree.", "No action is needed.")]
