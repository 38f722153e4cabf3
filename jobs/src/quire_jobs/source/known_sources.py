"""Makes a source of Python known to a session, for what is read and what is written. Keeps nothing."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource


def make_known(session: "SparkSession", source: "type[DataSource]") -> None:
    """Register it, in a session that is the active one of this thread from now on.

    Spark looks for a source that is read in the frame's own session, and for one that is written in the session that is
    active in the thread, else in the first one of the process: one made by `newSession`, or a thread of one's own, has
    none until a frame is made of Python's rows. Active first: Spark refuses a source whose name the active one knows.
    """
    assert session._jvm is not None
    type(session)._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
    session.dataSource.register(source)
