"""Registers a Python data source in a Spark session, for reads and for writes. Keeps no state."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource


def register_source(session: "SparkSession", source: "type[DataSource]") -> None:
    """Register the source, after making the session the active one of this thread.

    For a read, Spark looks for the source in the session of the frame. For a write, it looks in the active session of
    the thread, or else in the first session of the process. A session made by `newSession`, or another thread, has no
    active session until a frame is made from Python rows. The session is activated first, because Spark refuses a
    source whose name the active session already has.
    """
    assert session._jvm is not None
    type(session)._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
    session.dataSource.register(source)
