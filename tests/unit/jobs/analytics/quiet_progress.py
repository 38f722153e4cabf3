"""A progress that only counts."""


class QuietProgress:
    """See `quire_jobs.job.Progress`."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.units = 0

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        """A stage."""
        self.stages.append(stage)

    def advance(self, units: int) -> None:
        """So many more."""
        self.units += units

    def note(self, line: str) -> None:
        """Not looked at."""
