"""The kind `audit`: metadata against bookies against buckets. It only looks: nothing is repaired or removed."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

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

    from quire_jobs.analytics.bookie_tables import Holdings
    from quire_jobs.analytics.metadata_tables import MetadataTables

KIND = "audit"
_SHOWN_MAX = 200
LOST, AT_RISK, WASTE = "lost", "at-risk", "waste"
Row = Mapping[str, Any]
REMEDIES: Mapping[str, str] = {
    "lost ledger": "Bring back bookies that are stopped, with their disks. `quire cluster unrecoverable` follows it.",
    "lost object": "Restore the object from a version or a backup of the bucket: no other copy exists.",
    "listed without metadata": "After a restore of metadata: `quire metadata orphans list`. Else readers stop here.",
    "missing replica": "Auto-recovery copies it anew: look at `quire cluster status` and that it is on.",
    "short replica": "Auto-recovery copies what is missing: `quire ledger check LEDGER` says which entries.",
    "unreadable replica": "Look at `quire bookie scrub` there; healthy replicas are copied over damaged ones.",
    "divergent replica": "Keep the bookie's disks, run `quire ledger check LEDGER`: two owners may have written it.",
    "damaged replica": "Auto-recovery writes it anew from healthy replicas; look at that bookie's disks.",
    "missing object": "Offload the ledger again before its copies on bookies go: raise the deletion lag meanwhile.",
    "truncated object": "Offload the ledger again before its copies on bookies go: raise the deletion lag meanwhile.",
    "counts differ": "`quire ledger info LEDGER` has what counts; a reader of the topic may stop early.",
    "orphan": "The bookie's garbage collection deletes it; if it stays for days, look at that bookie's log.",
    "stray replica": "The bookie's garbage collection deletes it once the ledger is whole elsewhere.",
    "unlisted ledger": "Nobody reads it. `quire ledger delete LEDGER`, after a look at the topic.",
    "unused cursor ledger": "Nobody reads it. `quire ledger delete LEDGER`.",
    "orphan object": "The offload job's sweep removes what its attempts left. Others by hand, if no other cluster has "
    "them; after a restore of metadata one may be the only copy of a ledger.",
}


class Parameters(AnalysisParameters):
    """Metadata against bookies against buckets: orphans, missing, divergent replicas."""

    buckets: tuple[str, ...] = Field(
        default=(),
        description="Further buckets to list, s3://bucket or file:///folder. [those that ledgers name]",
    )
    bookies: bool = Field(default=True, description="Ask bookies what they hold. false: metadata and buckets only.")
    objects: bool = Field(default=True, description="List buckets. false: metadata and bookies only.")
    grace: Duration = Field(
        default=3600.0, ge=0, description="A ledger without owner is reported when it is older than this, e.g. 1h."
    )
    deep_ledgers: int = Field(
        default=0, ge=0, description="Read every replica of every entry of so many closed ledgers, chosen by the run."
    )
    deep_rate: float = Field(default=2000.0, gt=0, description="Reads a second for that.")


def run(spark: "SparkSession", parameters: Parameters, progress: Progress) -> Summary:
    """See `quire_jobs.job`."""
    import random

    from quire_jobs.analytics.bookie_tables import Damages, Holdings, read_damages, read_holdings
    from quire_jobs.analytics.metadata_tables import leave_out_trimmed
    from quire_jobs.analytics.object_tables import read_objects, targets_of
    from quire_jobs.analytics.reading import Ways, ask_cluster

    if not parameters.metadata:
        raise JobOptionsError("metadata is missing: where the cluster's metadata is, etcd://host:2379")

    async def ask(ways: Ways) -> Read:
        tables = await ways.tables()
        said = await read_holdings(ways.questions) if parameters.bookies else Holdings()
        leave_out_changed(tables, said, {int(ledger) async for page in ways.access.nodes.ids() for ledger in page})
        targets, wrong = targets_of(tables.targets, parameters.buckets)
        objects, failed = await read_objects(targets) if parameters.objects else ([], {})
        if parameters.objects:
            await leave_out_trimmed(ways.cluster.metadata, tables, {row[0] for row in objects})
        closed = [row[0] for row in tables.stored if row[1] == "closed"]
        chosen = random.Random(parameters.run_id).sample(closed, min(parameters.deep_ledgers, len(closed)))
        damages = await read_damages(ways.access, sorted(chosen), parameters.deep_rate) if chosen else Damages()
        complete = parameters.objects and not failed and not wrong
        unknown = wrong | failed | damages.unknown
        return Read(tables, said, objects if complete else None, damages.found, unknown, len(chosen))

    progress.begin("asking metadata, bookies and buckets", None, "ledgers")
    read = ask_cluster(parameters, ask)
    progress.advance(len(read.tables.stored))
    return judged(spark, parameters, read, progress)


def leave_out_changed(tables: "MetadataTables", said: "Holdings", present: set[int]) -> None:
    """Forget ledgers that were made or deleted while bookies were asked: they are no orphans, and not lost.

    `present`: the ids that have metadata now. One whose metadata cannot be read is there, and no orphan either.
    """
    known = {row[0] for row in tables.stored}
    gone, changed = known - present, known ^ present
    said.held = [row for row in said.held if row[0] not in changed]
    tables.stored = [row for row in tables.stored if row[0] not in gone]
    tables.expected = [row for row in tables.expected if row[0] not in gone]
    tables.ledgers = [row for row in tables.ledgers if row[2] not in gone]


class Read:
    """What was read. `objects` None: the buckets are not known completely, and nothing is said of them."""

    def __init__(
        self,
        tables: "MetadataTables",
        said: "Holdings",
        objects: list[tuple[Any, ...]] | None,
        damages: list[tuple[Any, ...]],
        failed: Mapping[str, str],
        looked_into: int,
    ) -> None:
        self.tables = tables
        self.said = said
        self.objects = objects
        self.damages = damages
        self.failed = failed
        self.looked_into = looked_into


def judged(spark: "SparkSession", parameters: Parameters, read: Read, progress: Progress) -> Summary:
    """The analysis of what was read."""
    from quire_jobs.analytics import columns
    from quire_jobs.analytics.figures import audit as figures
    from quire_jobs.analytics.reading import frame

    tables = read.tables
    stored = frame(spark, tables.stored, columns.STORED)
    ledgers = frame(spark, tables.ledgers, columns.LEDGERS)
    cursor_ledgers = spark.createDataFrame(tables.cursor_ledgers, "ledger long")
    unknown_owners = sorted(tables.unknown_owners)
    parts = figures.lists(ledgers, stored, cursor_ledgers, parameters.now_s, parameters.grace, unknown_owners)
    if parameters.bookies:
        parts += figures.replicas(
            stored,
            frame(spark, tables.expected, columns.EXPECTED),
            frame(spark, read.said.held, columns.HELD),
            frame(spark, read.said.silent, columns.SILENT),
        )
    if read.objects is not None:
        parts += figures.bucket(ledgers, frame(spark, read.objects, columns.OBJECTS))
    if read.damages:
        parts.append(_damages(spark, read.damages))
    findings = figures.all_of(parts).persist()
    try:
        kinds = [row.asDict() for row in figures.by_kind(findings).collect()]
        kinds.sort(key=lambda row: ((LOST, AT_RISK, WASTE).index(row["severity"]), row["kind"]))
        rows = [row.asDict() for row in findings.limit(_SHOWN_MAX).collect()]
        unsure = dict(read.said.silent) | dict(read.failed) | tables.unreadable
        result = Findings(
            {"findings": findings, "kinds": figures.by_kind(findings)},
            page(parameters, read, kinds, rows, unsure),
            totals(read, kinds),
            gauges(read, kinds),
            [Problem(subject=subject, reason=why, retry_helps=True) for subject, why in unsure.items()],
            details={"kinds": {row["kind"]: row["findings"] for row in kinds}},
        )
        return publish(spark, KIND, parameters, result, progress)
    finally:
        findings.unpersist()


def _damages(spark: "SparkSession", damages: list[tuple[Any, ...]]) -> "DataFrame":
    rows = [
        (
            "damaged replica",
            AT_RISK,
            ledger,
            bookie,
            f"entries {first} to {last}: {what}",
            None,
        )
        for ledger, bookie, first, last, what in damages
    ]
    schema = "kind string, severity string, ledger long, subject string, detail string, bytes long"
    return spark.createDataFrame(rows, schema)


def totals(read: Read, kinds: Sequence[Row]) -> dict[str, int | float]:
    """The numbers of the summary."""
    by_severity = dict.fromkeys((LOST, AT_RISK, WASTE), 0)
    for row in kinds:
        by_severity[row["severity"]] += row["findings"]
    return {
        "ledgers": len(read.tables.stored),
        "replicas": len(read.said.held),
        "bookies_silent": len(read.said.silent),
        "objects": len(read.objects or []),
        "ledgers_read_through": read.looked_into,
        "findings_lost": by_severity[LOST],
        "findings_at_risk": by_severity[AT_RISK],
        "findings_waste": by_severity[WASTE],
    }


def gauges(read: Read, kinds: Sequence[Row]) -> list[Gauge]:
    """Metrics by kind; a kind without findings is 0, so that an alert can wait for it."""
    found = [Gauge(name, f"{name.replace('_', ' ')}.", value) for name, value in totals(read, kinds).items()]
    counted = {row["kind"]: row["findings"] for row in kinds}
    return found + [
        Gauge("findings", "Findings by kind.", counted.get(kind, 0), {"kind": kind}) for kind in sorted(REMEDIES)
    ]


def page(
    parameters: Parameters, read: Read, kinds: Sequence[Row], rows: Sequence[Row], unsure: Mapping[str, str]
) -> Page:
    """The report."""
    total = totals(read, kinds)
    findings = sum(row["findings"] for row in kinds)
    return Page(
        "Audit",
        f"{parameters.metadata}: metadata, {'bookies' if parameters.bookies else 'no bookies'}, "
        f"{'buckets' if read.objects is not None else 'no buckets'}",
        parameters.now_s,
        advice(kinds, unsure),
        [
            Tile("Lost", count_text(total["findings_lost"]), "nobody has it"),
            Tile("At risk", count_text(total["findings_at_risk"]), "fewer or differing copies"),
            Tile("Waste", count_text(total["findings_waste"]), "space that nobody needs"),
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
            "replicas but no gap in their middle; deepLedgers reads every replica of every entry of some ledgers.",
            "A bookie that did not answer is unknown, never missing. Of open ledgers only their existence is compared.",
            *(f"Not known: {subject}: {why}" for subject, why in unsure.items()),
        ],
    )


def _kind_section(kinds: Sequence[Row]) -> Section:
    return Section(
        "What was found",
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
    """A line a kind, with its remedy."""
    levels = {LOST: Level.ACT, AT_RISK: Level.ACT, WASTE: Level.WATCH}
    found = [
        Advice(levels[row["severity"]], f"{row['kind']}: {count_text(row['findings'])}", REMEDIES[row["kind"]])
        for row in kinds
    ]
    if unsure:
        found.append(
            Advice(
                Level.WATCH,
                f"{count_text(len(unsure))} bookies, buckets or records could not be looked at; they are named below.",
                "Run the audit again when they answer: what it says of their part is not complete.",
            )
        )
    return found or [Advice(Level.GOOD, "Metadata, bookies and buckets agree.", "Nothing needs to be done.")]
