"""Writes the results of an analysis to a folder or bucket, and to Iceberg on request. Decides nothing.

    <output>/<kind>/<run>/tables/<name>/   a Parquet table (`quire_jobs.tables`)
    <output>/<kind>/<run>/<file>           small files: report, summary, metrics
    <output>/<kind>/<file>                 the same files of the newest run
    <output>/<kind>/observations/<name>/   a Parquet table that every run adds to once, for forecasts
    <tables>.<kind>_<name>                 with format=iceberg, instead of the first: the rows of the newest run

A repeated run replaces its own earlier rows and files, in one commit per table, so that readers see the rows of one
attempt. Parquet files of an earlier attempt are then removed, so that a plain listing gives the same rows. An Iceberg
table keeps the rows of earlier runs as snapshots.
"""

import os
import re
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from quire_bookie.errors import ConfigError, QuireError
from quire_bookie.object_store.opening import open_object_store
from quire_jobs.analytics.parameters import AnalysisParameters
from quire_jobs.errors import JobOptionsError, NotFoundError, QuireJobError
from quire_jobs.source.loop_thread import shared_loop
from quire_jobs.tables import (
    Layout,
    TableFormat,
    TableTarget,
    compact,
    once_per_run,
    open_table,
    read_frame,
    write_frame,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROBE: Final = ".quire/writable"
MARK: Final = "analysis"
FEW_ROWS: Final = 10_000
"""A table of up to this number of rows is written by the driver."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The mark of rows that replace all earlier rows.

    `over`: the mark in the table when the attempt began; a tuple because it may be None. Of two simultaneous attempts
    of a run only the first commit counts, since the files of the other may have been removed. If `over` itself is None,
    the last commit counts, as in a table that belongs to no single run.
    """

    value: str
    over: tuple[str | None] | None = None

    @property
    def key(self) -> str:
        """The same key for all attempts, because a table has the rows of one attempt."""
        return MARK

    def merged(self, found: str | None, now_ms: int) -> str | None:
        """Return the new value; None if these rows are already present or another attempt was first."""
        if found == self.value or (self.over is not None and self.over[0] != found):
            return None
        return self.value


class Output:
    """The output of one run. Blocking; on the driver. Made by `open_output`."""

    def __init__(self, kind: str, parameters: AnalysisParameters) -> None:
        """Raise JobOptionsError if the location is invalid."""
        self.kind = kind
        self.run = safe_name(parameters.run_id) or f"{datetime.fromtimestamp(parameters.now_s, UTC):%Y%m%dT%H%M%SZ}"
        self.url = f"{parameters.output}/{kind}"
        self.parameters = parameters
        environment = dict(os.environ)
        if parameters.region:
            environment["AWS_REGION"] = parameters.region
        try:
            self._objects = open_object_store(self.url, environment, parameters.endpoint or None)
        except ConfigError as error:
            raise JobOptionsError(f"output = {parameters.output!r}: {error}") from error

    # ---- before anything is read
    def check(self) -> None:
        """Write and remove a small object, and ask the catalog, so that an unusable output is reported before the
        analysis.

        Raises JobOptionsError, SourceUnavailableError, or QuireJobError with the reason.
        """
        if self.url.startswith("file:"):
            try:
                Path(urlsplit(self.url).path).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise JobOptionsError(
                    f"output = {self.parameters.output!r} cannot be written: cannot create the folder: {error.strerror}"
                ) from error

        async def probe() -> None:
            await self._objects.put(PROBE, b"", overwrite=True)
            await self._objects.delete(PROBE)

        self._do(probe)
        if self.parameters.format == "iceberg":
            open_table(self.table("topics")).marks()

    # ---- tables
    def table(self, name: str) -> TableTarget:
        """Return the target of one of the run's tables."""
        if self.parameters.format == "iceberg":
            whole = f"{self.kind}_{name}".replace("-", "_")
            return TableTarget.parse("iceberg", f"{self.parameters.tables}.{whole}")
        return self._parquet(f"{self.run}/tables/{name}")

    def replace(self, name: str, frame: "DataFrame") -> str:
        """Replace all rows of the table by these. Return the table's name for users.

        QuireJobError: another attempt of this run was faster. Errors of `quire_jobs.tables`.
        """
        target = self.table(name)
        value = f"{self.run} {uuid4().hex}"
        if target.format is TableFormat.ICEBERG:
            write_frame(frame, target, Attempt(value), replace=True, few_rows=FEW_ROWS)
            return target.shown
        folder = f"{self.run}/tables/{name}"
        attempt = Attempt(value, (open_table(target).marks().get(MARK),))
        # After the commit no snapshot refers to the files listed here: an attempt that wrote them can no longer commit.
        earlier = self._do(lambda: self._objects.names(f"{folder}/data"))
        if write_frame(frame, target, attempt, replace=True, few_rows=FEW_ROWS).repeated:
            raise QuireJobError(
                f"{target.shown}: another attempt of run {self.run} has written it meanwhile; use that result"
            )
        kept = {f"{folder}/{file.path}" for file in open_table(target).files()}

        async def remove() -> None:
            for each in earlier:
                if each not in kept:
                    await self._objects.delete(each)

        self._do(remove)
        return target.shown

    def observe(self, name: str, frame: "DataFrame") -> None:
        """Add this run's observations to those of all runs; once, even if the run is repeated. `frame`: a few rows."""
        target = self._parquet(f"observations/{name}")
        layout = Layout()
        write_frame(frame.coalesce(1), target, once_per_run(self.run), layout=layout, few_rows=FEW_ROWS)
        compact(frame.sparkSession, target, layout=layout)

    def observed(self, spark: "SparkSession", name: str) -> "DataFrame | None":
        """Return the observations of all runs; None if there are none."""
        with suppress(NotFoundError):
            return read_frame(spark, self._parquet(f"observations/{name}"))
        return None

    def _parquet(self, folder: str) -> TableTarget:
        given = self.parameters
        return TableTarget.parse("parquet", f"{self.url}/{folder}", region=given.region, endpoint=given.endpoint)

    # ---- small files
    def put(self, files: Mapping[str, str]) -> None:
        """Write texts by name, to the run's folder and then as the newest ones, replacing existing files."""

        async def work() -> None:
            for folder in (f"{self.run}/", ""):
                for name, text in files.items():
                    await self._objects.put(f"{folder}{name}", text.encode(), overwrite=True)

        self._do(work)

    def _do(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return shared_loop().run(work)
        except QuireError as error:
            raise QuireJobError(f"output = {self.parameters.output!r} cannot be written: {error}") from error


def open_output(kind: str, parameters: AnalysisParameters) -> Output:
    """Return the output of a run after checking it. Errors as `Output.check`."""
    output = Output(kind, parameters)
    output.check()
    return output


def safe_name(text: str) -> str:
    """Return the text as a folder name, without characters such as colons, which Hadoop interprets."""
    return _UNSAFE.sub("-", text).strip("-.")
