"""Rows of Spark's tasks, each from its own piece of work."""

from collections.abc import AsyncGenerator

import pytest
from pyspark.sql import SparkSession

from quire_jobs.analytics import columns
from quire_jobs.analytics.bookie_tasks import Rows, in_tasks


def test_each_piece_of_work_is_done_once_in_pages(spark: SparkSession) -> None:
    async def work(number: int) -> AsyncGenerator[Rows, None]:
        for page in range(number):
            yield [(f"{number}", page)] * 2

    schema = columns.table(piece=columns.TEXT, page=columns.LONG)
    found = in_tasks(spark, 3, work, schema)
    assert found.rdd.getNumPartitions() == 3
    assert sorted((row.piece, row.page) for row in found.collect()) == [
        *[("1", 0)] * 2,
        *[("2", 0)] * 2,
        *[("2", 1)] * 2,
    ]
    assert in_tasks(spark, 0, work, schema).collect() == []


def test_work_that_fails_fails_the_job(spark: SparkSession) -> None:
    async def work(number: int) -> AsyncGenerator[Rows, None]:
        yield [(number,)]
        raise ValueError("no bookie responds")

    with pytest.raises(Exception, match="no bookie responds"):
        in_tasks(spark, 1, work, columns.table(piece=columns.LONG)).collect()
