"""A Spark driver for tests that kill processes during a read: `python reading_driver.py OUT option=value ...`.

Writes ledger, entry and payload of the selected data to Parquet. When two tasks are done and others run, it prints
`reading` and waits for a line. Then it prints `struck N`, the number of tasks that had not begun by then, and at the
end `failed N`, the number of attempts that Spark repeated. The word `master=...` sets Spark's master; default
`local[2,8]`.
"""

import sys
import threading

from pyspark import SparkStageInfo
from pyspark.sql import SparkSession

from quire_jobs.source import register
from tests.integration.jobs.spark_processes import SETTINGS

_POLL_S = 0.02  # the state of Spark's tasks can only be polled


def _stages(spark: SparkSession) -> list[SparkStageInfo]:
    """Return the stages that run or have run."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(None)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return [stage for stage in stages if stage]


def _strike(spark: SparkSession, over: threading.Event) -> None:
    while not any(stage.numCompletedTasks >= 2 and stage.numActiveTasks for stage in _stages(spark)):
        if over.wait(_POLL_S):
            print("struck 0", flush=True)
            return
    print("reading", flush=True)
    sys.stdin.readline()
    waiting = sum(each.numTasks - each.numCompletedTasks - each.numActiveTasks for each in _stages(spark))
    print("struck", waiting, flush=True)


def main(out: str, *words: str) -> None:
    """Run until all data is written."""
    options = dict(word.split("=", 1) for word in words)
    builder = SparkSession.builder.master(options.pop("master", "local[2,8]"))
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    frame = spark.read.format("quire").options(**options).load()
    over = threading.Event()
    striking = threading.Thread(target=_strike, args=(spark, over), daemon=True)
    striking.start()
    frame.select("ledger", "entry", "payload").write.parquet(out)
    over.set()
    striking.join()
    print("failed", sum(stage.numFailedTasks for stage in _stages(spark)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
