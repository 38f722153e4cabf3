"""Options of the source, and the errors for wrong ones."""

from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark")

from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position
from quire_jobs.errors import JobOptionsError
from quire_jobs.source.columns import arrow_schema, spark_schema
from quire_jobs.source.options import Mode, SourceOptions, parse_options

METADATA = "etcd://localhost:2379"


def parsed(**given: str) -> SourceOptions:
    return parse_options({"metadata": METADATA, **given})


def test_names_are_accepted_in_any_case_and_values_with_units() -> None:
    options = parsed(
        TOPIC="orders",
        splitbytes="16m",
        batchBytes="512 KiB",
        startPosition="12:5",
        endtime="2026-01-31T12:00:00",
        columns="payload, key",
        failOnDataLoss="false",
    )
    assert options.topic == "persistent://public/default/orders"
    assert (options.split_bytes, options.batch_bytes) == (16 << 20, 512 << 10)
    assert options.start_position == Position(12, 5)
    assert options.end_time == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert options.columns == ("payload", "key")
    assert options.mode is Mode.MESSAGES
    assert not options.fail_on_data_loss


def test_the_path_of_load_is_a_topic() -> None:
    assert parse_options({"metadata": METADATA, "path": "a/b/c"}).topic == "persistent://a/b/c"


def test_times_in_milliseconds_and_the_positions_earliest_and_latest() -> None:
    assert parsed(topic="x", startTime="1769860800000").start_time == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parsed(topic="x", startPosition="earliest").start_position == EARLIEST
    assert parsed(topic="x", startPosition="latest").start_position == LATEST


def test_offsets_name_the_last_entry_of_each_managed_ledger() -> None:
    options = parsed(topic="x", startAfter='{"a/b/persistent/x": "4:-1"}', endAt='{"a/b/persistent/x": "5:17"}')
    assert options.start_after == (("a/b/persistent/x", Position(4, -1)),)
    assert options.end_at == (("a/b/persistent/x", Position(5, 17)),)


@pytest.mark.parametrize(
    "text", ["", "5:1", "[]", '["a"]', '{"a": 5}', '{"a": "5"}', '{"a": "5:1:2"}', '{"a": "-2:0"}']
)
def test_what_is_not_offsets_is_refused(text: str) -> None:
    with pytest.raises(JobOptionsError, match=r"startAfter = .*not offsets; give JSON such as"):
        parsed(topic="x", startAfter=text)


def test_offsets_exclude_other_bounds_of_their_side() -> None:
    with pytest.raises(JobOptionsError, match="startLedger and startAfter are bounds of the same side"):
        parsed(topic="x", startLedger="4", startAfter="{}")
    with pytest.raises(JobOptionsError, match="endTime and endAt are bounds of the same side"):
        parsed(topic="x", endTime="0", endAt="{}")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topic": "x", "spltBytes": "5"}, "unknown option spltBytes; did you mean splitBytes?"),
        ({"topic": "x", "mode": "rows"}, "mode = 'rows'"),
        ({"topic": "x", "splitBytes": "many"}, "splitBytes = 'many': not a number of bytes"),
        (
            {"topic": "x", "batchBytes": "2g"},
            "batchBytes = 2147483648: Input should be less than or equal to 1073741824",
        ),
        ({"topic": "x", "connectionIdleS": "-1"}, "connectionIdleS = '-1': Input should be greater than or equal to 0"),
        ({"topic": "x", "startPosition": "12"}, "startPosition = '12': not a position"),
        ({"topic": "x", "startTime": "yesterday"}, "startTime = 'yesterday': not a time"),
        ({"topic": "x", "endPosition": "1:2", "startPosition": "2:0"}, "startPosition 2:0 is after endPosition 1:2"),
        ({"topic": "x", "startLedger": "1", "startTime": "0"}, "startLedger and startTime are bounds of the same side"),
        ({"topic": "x", "ledgers": "1,2"}, "given: topic and ledgers"),
        ({"ledgers": "1,two"}, "ledgers = '1,two': not ledger ids"),
        ({"topics": "orders-*"}, "topics = 'orders-*': not tenant/namespace/pattern"),
        ({"topic": "a/b"}, "topic = 'a/b': Invalid short topic name"),
        ({"topic": "x", "jobId": "j"}, "jobId needs http"),
        ({"topic": "x", "cursor": "c"}, "cursor needs http"),
        ({"topic": "x", "http": "broker:8080"}, "expected http://host:port"),
        ({"ledgers": "1", "jobId": "j", "http": "http://b"}, "ledgers have no cursors"),
        ({"ledgers": "1", "mode": "table"}, "mode table needs the schemas of a topic"),
        ({}, "given: none"),
    ],
)
def test_an_error_names_the_option_and_its_value(given: dict[str, str], text: str) -> None:
    with pytest.raises(JobOptionsError) as refused:
        parsed(**given)
    assert text in str(refused.value)


def test_the_option_metadata_is_required() -> None:
    with pytest.raises(JobOptionsError, match="metadata is missing"):
        parse_options({"topic": "x"})


def test_columns_come_in_the_requested_order() -> None:
    options = parsed(topic="x", mode="entries", columns="payload,ledger")
    assert arrow_schema(options).names == spark_schema(options).fieldNames() == ["payload", "ledger"]
    with pytest.raises(JobOptionsError, match="mode entries has no column 'key'; it has topic, partition"):
        arrow_schema(parsed(topic="x", mode="entries", columns="key"))
    with pytest.raises(JobOptionsError, match="a column is named twice"):
        arrow_schema(parsed(topic="x", columns="key,key"))


def test_spark_derives_the_same_arrow_schema() -> None:
    # Spark requires this schema of every batch; otherwise a task fails.
    from pyspark.sql.pandas.types import to_arrow_schema

    for mode in (Mode.ENTRIES, Mode.MESSAGES):
        options = parsed(topic="x", mode=str(mode))
        assert to_arrow_schema(spark_schema(options), timezone="UTC").equals(arrow_schema(options))


def test_the_columns_of_a_table_are_unchanged_by_spark() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    from quire_broker.schemas.stored import Schema, SchemaType
    from quire_jobs.decode.table import plan_table

    definition = b"""{"type": "record", "name": "order", "fields": [
        {"name": "id", "type": "long"}, {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "by", "type": {"type": "map", "values": "int"}},
        {"name": "at", "type": {"type": "record", "name": "place", "fields": [{"name": "x", "type": "double"}]}}]}"""
    table = plan_table({"t/n/x": {0: Schema(SchemaType.AVRO, definition)}})
    options = parsed(topic="x", mode="table")
    assert to_arrow_schema(spark_schema(options, table), timezone="UTC").equals(arrow_schema(options, table))
    assert arrow_schema(parsed(topic="x", mode="table", columns="id,_key"), table).names == ["id", "_key"]
