"""A Spark driver for tests that kill it: `python streaming_driver.py OUT CHECKPOINT option=value ...`.

Streams the existing data to Parquet in micro-batches, and ends. Prints `ready` when the query starts. The settings of
its Spark are in `tests/support/spark_conf`, which the test's environment names.
"""

import sys

from pyspark.sql import SparkSession

from quire_jobs.source import register


def main(out: str, checkpoint: str, *words: str) -> None:
    """Run until all data that existed at the start is written."""
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    register(spark)
    options = dict(word.split("=", 1) for word in words)
    frame = spark.readStream.format("quire").options(**options).load()
    print("ready", flush=True)
    query = (
        frame.select("ledger", "entry", "payload")
        .writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
