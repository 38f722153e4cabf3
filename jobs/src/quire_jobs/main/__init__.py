"""`quire jobs`: loads kinds of jobs, starts Spark, shows progress, reports the result."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire_bookie.cli.commands import Commands


def register(commands: "Commands") -> None:
    """Add `quire jobs`; entry point of the group `quire.commands`."""
    from quire_jobs.main import jobs

    jobs.register(commands)
