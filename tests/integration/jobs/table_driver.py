"""A Spark driver of its own that streams a topic into a table, for tests that kill it.

    python table_driver.py FORMAT TABLE CHECKPOINT METADATA TOPIC

Micro-batches of 100 entries, until all is written that was there when it began.
"""

import sys

from pyspark.sql import SparkSession

from quire_jobs.source import register
from quire_jobs.tables import Layout, TableTarget, foreach_batch


def main(format: str, table: str, checkpoint: str, metadata: str, topic: str) -> None:
    """As the recipe of docs/spark.md has it."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    register(spark)
    options = {"metadata": metadata, "topic": topic, "maxEntriesPerTrigger": "100"}
    query = (
        spark.readStream.format("quire")
        .options(**options)
        .load()
        .writeStream.foreachBatch(
            foreach_batch(TableTarget.parse(format, table), layout=Layout("publish_time", "key", 4, ("entry",)))
        )
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
