"""Declares from which duration on an operation is logged as slow."""

from math import inf

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.settings.declared import MILLISECONDS, setting


@dataclass(frozen=True, slots=True)
class SlowSettings:
    """The duration in seconds from which on an operation is logged, with its parts; 0: none is."""

    operation_s: float = setting(
        limits.SLOW_OPERATION_S,
        "slowOperationMs",
        "an add, a read, a publish or an admin request that takes this time or longer is logged by quire.slow with its "
        "parts, in ms; 0: none is",
        short="slow_operation_ms",
        unit=MILLISECONDS,
        ge=0,
    )

    @property
    def after_s(self) -> float:
        """The duration to compare with; infinite if nothing is logged."""
        return self.operation_s or inf
