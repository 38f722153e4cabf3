"""A progress that only counts."""


class QuietProgress:
    """Counts stages and units; see `quire_jobs.job.Progress`."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.units = 0

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        """Record a stage."""
        self.stages.append(stage)

    def advance(self, units: int) -> None:
        """Count units."""
        self.units += units

    def note(self, line: str) -> None:
        """Ignore the line."""
