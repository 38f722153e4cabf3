"""`quire jobs`: finds kinds of jobs, starts Spark, shows how far a job is, and says what it did."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire_bookie.cli.main import Commands


def register(commands: "Commands") -> None:
    """Entry point of the group `quire.commands`."""
    from quire_jobs.main import jobs

    jobs.register(commands)
