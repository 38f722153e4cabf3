"""Kinds of jobs and their parameters. Written by scripts/k8s/known_jobs.py from the jobs' own models."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobKind:
    """The parameters of one kind."""

    parameters: frozenset[str]
    required: frozenset[str]
    lists: frozenset[str]
    """Parameters that accept several values."""


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
                "endpoint",
                "format",
                "grace",
                "http",
                "metadata",
                "objects",
                "output",
                "region",
                "runId",
                "tables",
                "top",
            }
        ),
        frozenset({"output"}),
        frozenset({"buckets"}),
    ),
    "backlog": JobKind(
        frozenset(
            {
                "asOf",
                "config",
                "diskWarning",
                "endpoint",
                "format",
                "http",
                "metadata",
                "old",
                "output",
                "region",
                "runId",
                "tables",
                "top",
                "topics",
                "window",
            }
        ),
        frozenset({"output"}),
        frozenset({"topics"}),
    ),
    "compact": JobKind(
        frozenset(
            {"buckets", "config", "http", "keysSizeMax", "metadata", "retainNullKey", "runId", "splitSize", "topics"}
        ),
        frozenset({"topics"}),
        frozenset({"topics"}),
    ),
    "cost": JobKind(
        frozenset(
            {
                "asOf",
                "config",
                "currency",
                "endpoint",
                "format",
                "http",
                "metadata",
                "output",
                "overhead",
                "priceBookies",
                "priceObjectStore",
                "region",
                "runId",
                "tables",
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
                "endpoint",
                "format",
                "hotShare",
                "http",
                "last",
                "messages",
                "metadata",
                "output",
                "region",
                "runId",
                "startTime",
                "tables",
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
        frozenset(
            {
                "asOf",
                "config",
                "endpoint",
                "format",
                "http",
                "metadata",
                "options",
                "output",
                "region",
                "runId",
                "tables",
                "top",
                "topics",
                "window",
            }
        ),
        frozenset({"output"}),
        frozenset({"options", "topics"}),
    ),
    "schema-drift": JobKind(
        frozenset(
            {
                "asOf",
                "config",
                "endTime",
                "endpoint",
                "format",
                "grace",
                "http",
                "last",
                "messages",
                "metadata",
                "output",
                "region",
                "runId",
                "startTime",
                "tables",
                "top",
                "topics",
            }
        ),
        frozenset({"output"}),
        frozenset({"topics"}),
    ),
    "table": JobKind(
        frozenset(
            {
                "batchEntries",
                "batchSize",
                "compact",
                "compactEvery",
                "config",
                "endpoint",
                "every",
                "failOnDataLoss",
                "failOnUndecodable",
                "failuresMax",
                "fileSize",
                "format",
                "http",
                "metadata",
                "partitionBy",
                "payload",
                "region",
                "runFor",
                "runId",
                "startTime",
                "table",
                "topics",
            }
        ),
        frozenset({"table", "topics"}),
        frozenset({"topics"}),
    ),
    "throughput": JobKind(
        frozenset(
            {
                "asOf",
                "clockTolerance",
                "config",
                "endTime",
                "endpoint",
                "format",
                "http",
                "last",
                "messages",
                "metadata",
                "output",
                "region",
                "runId",
                "startTime",
                "tables",
                "top",
                "topics",
            }
        ),
        frozenset({"output"}),
        frozenset({"topics"}),
    ),
}
