"""A Spark driver that streams a topic to a table, for tests that kill it.

    python table_driver.py FORMAT TABLE CHECKPOINT METADATA TOPIC [MASTER]

Runs micro-batches of 100 entries, until all data that existed at the start is written.
"""

import sys

from pyspark.sql import SparkSession

from quire_jobs.source import register
from quire_jobs.tables import Layout, TableTarget, foreach_batch
from tests.integration.jobs.spark_processes import SETTINGS

BUCKETS = 64
"""Many buckets, so that writing the files of a micro-batch one after the other takes a while."""


def main(format: str, table: str, checkpoint: str, metadata: str, topic: str, master: str = "local[2]") -> None:
    """Follow the recipe of docs/spark.md."""
    builder = SparkSession.builder.master(master)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    options = {"metadata": metadata, "topic": topic, "maxEntriesPerTrigger": "100"}
    query = (
        spark.readStream.format("quire")
        .options(**options)
        .load()
        .writeStream.foreachBatch(
            foreach_batch(TableTarget.parse(format, table), layout=Layout("publish_time", "key", BUCKETS, ("entry",)))
        )
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
