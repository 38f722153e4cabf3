"""One small Spark session for all tests of analyses in a process, and times from text."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from tests.support.spark_session import spark_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """A session with few partitions and a time zone other than UTC, which must not matter."""
    few = {"shuffle.partitions": "1", "adaptive.enabled": "false"}
    return spark_session(tmp_path_factory.mktemp("python"), **few, **{"session.timeZone": "Asia/Kolkata"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with Spark as slow, and run them in one process."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group("spark analytics"))


def at(text: str) -> datetime:
    """Return the time `2026-11-22 10:00`, or with seconds, in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
