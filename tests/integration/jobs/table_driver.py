"""A Spark driver of its own that streams a topic into a table, for tests that kill it.

    python table_driver.py FORMAT TABLE CHECKPOINT METADATA TOPIC [MASTER]

Micro-batches of 100 entries, until all is written that was there when it began.
"""

import sys

from pyspark.sql import SparkSession

from quire_jobs.source import register
from quire_jobs.tables import Layout, TableTarget, foreach_batch
from tests.integration.jobs.spark_processes import SETTINGS

BUCKETS = 64
"""So many that the files of a micro-batch take a while, one after the other."""


def main(format: str, table: str, checkpoint: str, metadata: str, topic: str, master: str = "local[2]") -> None:
    """As the recipe of docs/spark.md has it."""
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
