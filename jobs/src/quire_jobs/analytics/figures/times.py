"""Times as seconds since 1970, independent of any session's time zone. Pure."""

from pyspark.sql import Column
from pyspark.sql import functions as F

HOUR_S = 3600
DAY_S = 86400


def seconds(time: Column) -> Column:
    """Return seconds since 1970, with their fraction."""
    return F.unix_micros(time) / F.lit(1_000_000.0)


def bucket(time: Column, width_s: int) -> Column:
    """Return the start of the bucket of `width_s` seconds that contains a timestamp, as long; also before 1970."""
    return (F.floor(F.unix_micros(time) / F.lit(width_s * 1_000_000)) * F.lit(width_s)).cast("long")


def instant(epoch_s: Column) -> Column:
    """Return a timestamp from seconds since 1970."""
    return F.timestamp_micros((epoch_s * F.lit(1_000_000)).cast("long"))
