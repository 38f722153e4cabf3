"""Times as whole seconds since 1970, so that no session's time zone takes part. Pure."""

from pyspark.sql import Column
from pyspark.sql import functions as F

HOUR_S = 3600
DAY_S = 86400


def seconds(time: Column) -> Column:
    """Seconds since 1970, with their fraction."""
    return F.unix_micros(time) / F.lit(1_000_000.0)


def bucket(time: Column, width_s: int) -> Column:
    """The start of the bucket of `width_s` seconds that a timestamp is in, as long; also before 1970."""
    return (F.floor(F.unix_micros(time) / F.lit(width_s * 1_000_000)) * F.lit(width_s)).cast("long")


def instant(epoch_s: Column) -> Column:
    """A timestamp of seconds since 1970."""
    return F.timestamp_micros((epoch_s * F.lit(1_000_000)).cast("long"))
