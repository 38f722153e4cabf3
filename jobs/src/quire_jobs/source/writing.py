"""Connects the data source to the sink: sends requests to brokers before the first row. Writes nothing itself."""

from collections.abc import Mapping

from pyspark.sql.types import StructType

from quire_jobs.errors import JobOptionsError
from quire_jobs.sink.options import Deduplication, SinkOptions, parse_sink_options
from quire_jobs.sink.preparation import prepare
from quire_jobs.sink.writer import QuireStreamWriter, QuireWriter
from quire_jobs.source.broker_http import BrokerHttp
from quire_jobs.source.loop_thread import shared_loop


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> QuireWriter:
    """Return the writer of `df.write`. JobOptionsError, TableSchemaError; errors of the brokers."""
    if overwrite:
        raise JobOptionsError("quire sink: a topic cannot be overwritten: use mode append")
    options = parse_sink_options(given)
    writer = QuireWriter(options, schema)
    _prepare(options)
    return writer


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> QuireStreamWriter:
    """Return the writer of `df.writeStream`. JobOptionsError, TableSchemaError; errors of the brokers."""
    if overwrite:
        raise JobOptionsError("quire sink: a topic cannot be overwritten: use output mode append")
    options = parse_sink_options(given)
    writer = QuireStreamWriter(options, schema)
    _prepare(options)
    return writer


def _prepare(options: SinkOptions) -> None:
    async def ask() -> None:
        async with BrokerHttp(options.http) as brokers:
            await prepare(brokers, options)

    if options.deduplication is not Deduplication.OFF:
        shared_loop().run(ask)
