"""Where the results of an analysis go: into a folder or bucket, and into Iceberg where that is wanted. Decides nothing.

    <output>/<kind>/<run>/tables/<name>/   a Parquet table (`quire_jobs.tables`)
    <output>/<kind>/<run>/<file>           small files: report, summary, metrics
    <output>/<kind>/<file>                 the same of the newest run
    <output>/<kind>/observations/<name>/   a Parquet table that every run adds to once, for forecasts
    <tables>.<kind>_<name>                 with format=iceberg, instead of the first: the rows of the newest run

A run that is repeated puts its rows and files in the place of its own earlier ones, in one commit for each table: a
reader sees those of one attempt. Parquet files that an earlier attempt left are removed then, so that a plain listing
finds the same rows. An Iceberg table keeps the rows of earlier runs as its snapshots.
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
from quire_bookie.places.opening import open_place
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
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The mark of rows that are in the place of all that were there before.

    `over`: what the table had when the attempt began, in a tuple as that may be nothing. Of two attempts of one run at
    once only the first to commit counts: the other one may have had its files removed. None: whoever comes last counts,
    as in a table that belongs to no single run.
    """

    value: str
    over: tuple[str | None] | None = None

    @property
    def key(self) -> str:
        """One for a table: it has the rows of one attempt."""
        return MARK

    def merged(self, found: str | None, now_ms: int) -> str | None:
        """None: these rows are there already, or another attempt was first."""
        if found == self.value or (self.over is not None and self.over[0] != found):
            return None
        return self.value


class Output:
    """Of one run of a kind. Blocking; on the driver. Made by `open_output`."""

    def __init__(self, kind: str, parameters: AnalysisParameters) -> None:
        """JobOptionsError: there is no such place."""
        self.kind = kind
        self.run = safe_name(parameters.run_id) or f"{datetime.fromtimestamp(parameters.now_s, UTC):%Y%m%dT%H%M%SZ}"
        self.url = f"{parameters.output}/{kind}"
        self.parameters = parameters
        environment = dict(os.environ)
        if parameters.region:
            environment["AWS_REGION"] = parameters.region
        try:
            self._place = open_place(self.url, environment, parameters.endpoint or None)
        except ConfigError as error:
            raise JobOptionsError(f"output = {parameters.output!r}: {error}") from error

    # ---- before anything is read
    def check(self) -> None:
        """Write and remove a small object, and ask the catalog, so that no analysis is made for nothing.

        JobOptionsError, SourceUnavailableError, or QuireJobError with what the place says.
        """
        if self.url.startswith("file:"):
            try:
                Path(urlsplit(self.url).path).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise JobOptionsError(
                    f"output = {self.parameters.output!r} cannot be written: the folder cannot be made: "
                    f"{error.strerror}"
                ) from error

        async def probe() -> None:
            await self._place.put(PROBE, b"", overwrite=True)
            await self._place.delete(PROBE)

        self._do(probe)
        if self.parameters.format == "iceberg":
            open_table(self.table("topics")).marks()

    # ---- tables
    def table(self, name: str) -> TableTarget:
        """One of the run's."""
        if self.parameters.format == "iceberg":
            whole = f"{self.kind}_{name}".replace("-", "_")
            return TableTarget.parse("iceberg", f"{self.parameters.tables}.{whole}")
        return self._parquet(f"{self.run}/tables/{name}")

    def replace(self, name: str, frame: "DataFrame") -> str:
        """Put these rows in the place of all that the table has; the table for people.

        QuireJobError: another attempt of this run was faster. Errors of `quire_jobs.tables`.
        """
        target = self.table(name)
        value = f"{self.run} {uuid4().hex}"
        if target.format is TableFormat.ICEBERG:
            write_frame(frame, target, Attempt(value), replace=True)
            return target.shown
        folder = f"{self.run}/tables/{name}"
        attempt = Attempt(value, (open_table(target).marks().get(MARK),))
        # What is listed before our commit is named by nobody after it: whoever wrote it and has not committed cannot.
        earlier = self._do(lambda: self._place.names(f"{folder}/data"))
        if write_frame(frame, target, attempt, replace=True).repeated:
            raise QuireJobError(f"{target.shown}: another attempt of run {self.run} wrote it meanwhile; look at that")
        kept = {f"{folder}/{file.path}" for file in open_table(target).files()}

        async def remove() -> None:
            for each in earlier:
                if each not in kept:
                    await self._place.delete(each)

        self._do(remove)
        return target.shown

    def observe(self, name: str, frame: "DataFrame") -> None:
        """Add what this run saw to what all runs saw; once, also when the run is repeated. `frame`: a few rows."""
        target = self._parquet(f"observations/{name}")
        layout = Layout()
        write_frame(frame.coalesce(1), target, once_per_run(self.run), layout=layout)
        compact(frame.sparkSession, target, layout=layout)

    def observed(self, spark: "SparkSession", name: str) -> "DataFrame | None":
        """What all runs saw; None: there was none."""
        with suppress(NotFoundError):
            return read_frame(spark, self._parquet(f"observations/{name}"))
        return None

    def _parquet(self, folder: str) -> TableTarget:
        given = self.parameters
        return TableTarget.parse("parquet", f"{self.url}/{folder}", region=given.region, endpoint=given.endpoint)

    # ---- small files
    def put(self, files: Mapping[str, str]) -> None:
        """Write texts by name, of the run and then as the newest ones, replacing those of these names."""

        async def work() -> None:
            for folder in (f"{self.run}/", ""):
                for name, text in files.items():
                    await self._place.put(f"{folder}{name}", text.encode(), overwrite=True)

        self._do(work)

    def _do(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return shared_loop().run(work)
        except QuireError as error:
            raise QuireJobError(f"output = {self.parameters.output!r} cannot be written: {error}") from error


def open_output(kind: str, parameters: AnalysisParameters) -> Output:
    """The output of a run, which was tried. Errors as `Output.check`."""
    output = Output(kind, parameters)
    output.check()
    return output


def safe_name(text: str) -> str:
    """As a name of a folder: a colon, for one, means something else to Hadoop, which may read it."""
    return _UNSAFE.sub("-", text).strip("-.")
