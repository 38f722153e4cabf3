"""Kinds of jobs and their parameters. Written by scripts/k8s/known_jobs.py from the jobs' own models."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobKind:
    """What may be said to one kind."""

    parameters: frozenset[str]
    required: frozenset[str]
    lists: frozenset[str]
    """Those that take several values."""


KINDS = {
    "audit": JobKind(
        frozenset(
            {
                "asOf",
                "bookies",
                "buckets",
                "config",
                "deepLedgers",
                "deepRate",
                "grace",
                "http",
                "metadata",
                "objects",
                "output",
                "runId",
                "top",
            }
        ),
        frozenset({"output"}),
        frozenset({"buckets"}),
    ),
    "backlog": JobKind(
        frozenset(
            {"asOf", "config", "diskWarning", "http", "metadata", "old", "output", "runId", "top", "topics", "window"}
        ),
        frozenset({"output"}),
        frozenset({"topics"}),
    ),
    "cost": JobKind(
        frozenset(
            {
                "asOf",
                "config",
                "currency",
                "http",
                "metadata",
                "output",
                "overhead",
                "priceBookies",
                "priceObjectStore",
                "runId",
                "top",
                "topics",
            }
        ),
        frozenset({"output"}),
        frozenset({"topics"}),
    ),
    "keys": JobKind(
        frozenset(
            {
                "asOf",
                "config",
                "endTime",
                "hotShare",
                "http",
                "messages",
                "metadata",
                "output",
                "runId",
                "startTime",
                "top",
                "topics",
            }
        ),
        frozenset({"output"}),
        frozenset({"topics"}),
    ),
    "offload": JobKind(
        frozenset(
            {
                "afterSize",
                "afterTime",
                "blockSize",
                "compact",
                "config",
                "endpoint",
                "fileSize",
                "format",
                "http",
                "keyBuckets",
                "ledgerSizeMin",
                "ledgers",
                "metadata",
                "rate",
                "readBack",
                "region",
                "runId",
                "sweep",
                "table",
                "target",
                "topics",
            }
        ),
        frozenset({"target", "topics"}),
        frozenset({"ledgers", "topics"}),
    ),
    "retention-what-if": JobKind(
        frozenset({"asOf", "config", "http", "metadata", "options", "output", "runId", "top", "topics", "window"}),
        frozenset({"output"}),
        frozenset({"options", "topics"}),
    ),
    "schema-drift": JobKind(
        frozenset(
            {
                "asOf",
                "config",
                "endTime",
                "grace",
                "http",
                "messages",
                "metadata",
                "output",
                "runId",
                "startTime",
                "top",
                "topics",
            }
        ),
        frozenset({"output"}),
        frozenset({"topics"}),
    ),
    "throughput": JobKind(
        frozenset(
            {
                "asOf",
                "clockTolerance",
                "config",
                "endTime",
                "http",
                "messages",
                "metadata",
                "output",
                "runId",
                "startTime",
                "top",
                "topics",
            }
        ),
        frozenset({"output"}),
        frozenset({"topics"}),
    ),
}
