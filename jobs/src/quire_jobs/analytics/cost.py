"""The kind `cost`: where the bytes are, and their cost per month."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from quire_jobs.analytics.output import open_output
from quire_jobs.analytics.parameters import MetadataParameters
from quire_jobs.analytics.publishing import Findings, Gauge, of_rows, publish
from quire_jobs.analytics.report.bars import Bar, bars
from quire_jobs.analytics.report.markup import shortened
from quire_jobs.analytics.report.page import Advice, Cell, Level, Page, Section, Table, Tile
from quire_jobs.analytics.report.units import bytes_text, count_text, money_text, percent_text
from quire_jobs.job import Problem, Progress, Summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KIND = "cost"
_TIERS = ("bookies", "object-store")
_TIER_NAMES = ("on bookies, all copies", "in object storage")
_MOST_OF_IT = 0.5
_SAVING_MIN = 0.01
"""A month, in the currency of the prices."""
Row = Mapping[str, Any]


class Parameters(MetadataParameters):
    """Show the monthly cost of stored bytes: by topic, tier, namespace and tenant, with given prices."""

    price_bookies: float = Field(default=0.0, ge=0, description="Price of a GiB on a bookie's disk for a month.")
    price_object_store: float = Field(default=0.0, ge=0, description="Price of a GiB in object storage for a month.")
    currency: str = Field(default="USD", max_length=12, description="Currency of the prices, for display.")
    overhead: float = Field(
        default=0.0, ge=0, le=10, description="Additional share of the payload for indexes and headers, e.g. 0.05."
    )


def run(spark: "SparkSession", parameters: Parameters, progress: Progress) -> Summary:
    """Run the analysis; see `quire_jobs.job`."""
    from pyspark.sql import functions as F

    from quire_jobs.analytics import columns
    from quire_jobs.analytics.figures import cost as figures
    from quire_jobs.analytics.reading import ask_cluster, frame

    output = open_output(KIND, parameters)
    progress.begin("reading metadata", None, "ledgers")
    read = ask_cluster(parameters, lambda clients: clients.tables(parameters.topics))
    progress.advance(len(read.ledgers))
    ledgers = frame(spark, read.ledgers, columns.LEDGERS)
    prices = dict(zip(_TIERS, (parameters.price_bookies, parameters.price_object_store), strict=True))
    costs = figures.by_topic_and_tier(ledgers, prices, parameters.overhead).persist()
    try:
        order = (F.desc("cost_per_month"), F.desc("stored_bytes"), "topic", "tier")
        rows = [row.asDict() for row in costs.orderBy(*order).collect()]
        tenants = figures.summed(costs, "tenant")
        namespaces = figures.summed(costs, "namespace")
        twice = figures.twice_stored(ledgers).orderBy(F.desc("stored_bytes"), "topic")
        twice_rows = [row.asDict() for row in twice.collect()]
        namespace_tiers = [row.asDict() for row in figures.summed(costs, "namespace", "tier").collect()]
        findings = Findings(
            {"topics": costs.orderBy(*order), "tenants": tenants, "namespaces": namespaces, "twice_stored": twice},
            page(parameters, rows, namespace_tiers, [row.asDict() for row in tenants.collect()], twice_rows),
            totals(rows, twice_rows),
            gauges(rows),
            [Problem(subject=subject, reason=why) for subject, why in read.unreadable.items()],
            details={"currency": parameters.currency, "prices": prices},
            done=len(rows),
        )
        return publish(output, findings, progress)
    finally:
        costs.unpersist()


def totals(rows: Sequence[Row], twice: Sequence[Row]) -> dict[str, int | float]:
    """Return the numbers of the summary."""
    return {
        "topics": len({row["topic"] for row in rows}),
        "stored_bytes": sum(row["stored_bytes"] for row in rows),
        "bookies_stored_bytes": sum(row["stored_bytes"] for row in rows if row["tier"] == "bookies"),
        "object_store_stored_bytes": sum(row["stored_bytes"] for row in rows if row["tier"] == "object-store"),
        "twice_stored_bytes": sum(row["stored_bytes"] for row in twice),
        "cost_per_month": sum(row["cost_per_month"] for row in rows),
    }


def gauges(rows: Sequence[Row]) -> list[Gauge]:
    """Return metrics by topic and tier, most expensive first."""
    found = []
    for tier in _TIERS:
        members = [row for row in rows if row["tier"] == tier]
        for column, text in (("stored_bytes", "Bytes stored, in all copies."), ("cost_per_month", "Cost per month.")):
            found += [
                Gauge(one.name, one.text, one.value, {**one.labels, "tier": tier})
                for one in of_rows(members, "topic", column, f"topic_{column}", text)
            ]
    return sorted(found, key=lambda one: one.name)


def page(
    parameters: Parameters, rows: Sequence[Row], namespaces: Sequence[Row], tenants: Sequence[Row], twice: Sequence[Row]
) -> Page:
    """Return the report."""
    total = totals(rows, twice)
    priced = bool(parameters.price_bookies or parameters.price_object_store)

    def money(amount: float | None) -> str:
        return money_text(amount, parameters.currency)

    column, shown = ("cost_per_month", money) if priced else ("stored_bytes", bytes_text)
    return Page(
        "Cost of storage",
        ", ".join(parameters.topics) or "all topics",
        parameters.now_s,
        advice(parameters, rows, tenants, twice),
        [
            Tile("A month", money(total["cost_per_month"]) if priced else "–", "" if priced else "no prices given"),
            Tile("On bookies", bytes_text(total["bookies_stored_bytes"]), "all copies"),
            Tile("In object storage", bytes_text(total["object_store_stored_bytes"])),
            Tile("In both", bytes_text(total["twice_stored_bytes"]), "bookies delete it after the deletion lag"),
        ],
        [
            Section(
                "Namespaces",
                "Cost per month by tier." if priced else "Stored bytes by tier; set prices to show cost.",
                bars(_stacked(namespaces, "namespace", column), shown, label="Namespaces by tier", parts=_TIER_NAMES),
            ),
            Section(
                "Topics",
                "",
                bars(
                    _stacked(rows, "topic", column)[: parameters.top], shown, label="Topics by tier", parts=_TIER_NAMES
                ),
                Table(
                    ("Topic", "Tier", "Ledgers", "Entries", "Payload", "Stored", "A month"),
                    [
                        (
                            row["topic"],
                            row["tier"],
                            Cell(count_text(row["ledgers"])),
                            Cell(count_text(row["entries"])),
                            Cell(bytes_text(row["bytes"])),
                            Cell(bytes_text(row["stored_bytes"])),
                            Cell(money(row["cost_per_month"]) if priced else "–"),
                        )
                        for row in rows
                    ],
                ),
            ),
            Section(
                "Tenants",
                "",
                bars([Bar(row["tenant"], [row[column]]) for row in tenants], shown, label="Tenants"),
            ),
        ],
        [
            f"Prices: {money(parameters.price_bookies)} per GiB and month on bookies, "
            f"{money(parameters.price_object_store)} in object storage; plus {percent_text(parameters.overhead)} of "
            "the payload. A GiB is 2^30 bytes.",
            "On bookies a ledger counts once per copy of its write quorum. Requests, traffic and deleted ledgers that "
            "bookies have not collected yet are not included.",
        ],
    )


def _stacked(rows: Sequence[Row], name: str, column: str) -> list[Bar]:
    """Return one bar per name with a part per tier, largest first."""
    by_name: dict[str, list[float]] = {}
    for row in rows:
        by_name.setdefault(row[name], [0.0, 0.0])[_TIERS.index(row["tier"])] += row[column]
    return [Bar(key, parts) for key, parts in sorted(by_name.items(), key=lambda one: (-sum(one[1]), one[0]))]


def advice(parameters: Parameters, rows: Sequence[Row], tenants: Sequence[Row], twice: Sequence[Row]) -> list[Advice]:
    """Return advice for conspicuous topics."""
    if not rows:
        return [Advice(Level.WATCH, "No topic has a ledger.", "Check the names of the topics.")]
    found = []
    total = totals(rows, twice)
    if total["twice_stored_bytes"]:
        saving = total["twice_stored_bytes"] / 2**30 * parameters.price_bookies
        worth = f", {money_text(saving, parameters.currency)} a month" if saving else ""
        found.append(
            Advice(
                Level.WATCH,
                f"{bytes_text(total['twice_stored_bytes'])} on bookies are also in object storage{worth}.",
                "Bookies delete them after the offload's deletion lag; a shorter lag frees them sooner.",
            )
        )
    difference = parameters.price_bookies - parameters.price_object_store
    largest = next((row for row in rows if row["tier"] == "bookies"), None)
    if largest is not None and difference > 0 and largest["stored_bytes"] > _MOST_OF_IT * total["stored_bytes"]:
        copies = largest["stored_bytes"] / max(largest["bytes"], 1)
        saving = largest["stored_bytes"] / 2**30 * (parameters.price_bookies - parameters.price_object_store / copies)
        if saving >= _SAVING_MIN:
            found.append(
                Advice(
                    Level.WATCH,
                    f"{shortened(largest['topic'])} uses most of the space on bookies: "
                    f"{bytes_text(largest['stored_bytes'])}.",
                    f"Offloading it saves up to {money_text(saving, parameters.currency)} a month; a shorter retention "
                    "saves in both tiers (see `retention-what-if`).",
                )
            )
    if not (parameters.price_bookies or parameters.price_object_store):
        found.append(
            Advice(
                Level.WATCH, "No prices were given.", "Run the analysis again with priceBookies and priceObjectStore."
            )
        )
    return found or [Advice(Level.GOOD, "Nothing is stored twice, and no topic dominates.", "No action is needed.")]
