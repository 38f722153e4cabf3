"""The Spark of tests: one JVM in each process of tests, and a session of one's own for each folder that asks.

Owns what every JVM with Spark gets (`spark_conf/`), those that tests start as programs among them.
"""

import os
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.spark_python import spark_python

os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).with_name("spark_conf")))


def spark_session(folder: Path, **settings: str) -> SparkSession:
    """A session with two cores and these settings of SQL, which other sessions of the process do not see.

    `folder` is for the script that starts Python. The JVM ends with the process.
    """
    os.environ["PYSPARK_PYTHON"] = spark_python(folder)
    session = SparkSession.builder.master("local[2]").appName("quire tests").getOrCreate().newSession()
    session.sparkContext.setLogLevel("ERROR")
    for name, value in settings.items():
        session.conf.set(f"spark.sql.{name}", value)
    return session
