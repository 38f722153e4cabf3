"""Bounds schemas, and the steps that a check may cost.

Clients choose the schemas that they register, and so the cost of a check: comparing two Avro unions takes the
product of their branches. Each step of a check is counted, and a check that needs more than the budget is refused.
"""

from collections.abc import Callable
from typing import TypeVar

from quire_bookie.env.side_thread import SideThread
from quire_broker.errors import SchemaError, TooManyOperationsError
from quire_broker.limits import SCHEMA_CHECK_STEPS_MAX
from quire_broker.settings.schemas import SchemaBounds

DEPTH_MAX = 64
"""Levels of nesting in a schema, including those through the names of records."""
_BYTES_PER_STEP = 50
"""Parsing this much JSON costs about as much as one step of a check."""
_STEPS_AT_ONCE = 2_000
"""A check of up to this many steps, about 2 ms, runs on the event loop."""
T = TypeVar("T")


class BudgetSpentError(SchemaError):
    """The check of a schema exceeds its budget."""


class Budget:
    """Counts the remaining steps of one check."""

    __slots__ = ("_left", "_steps")

    def __init__(self, steps: int = SCHEMA_CHECK_STEPS_MAX) -> None:
        self._steps = self._left = steps

    def spend(self, steps: int = 1) -> None:
        """Count steps. BudgetSpentError if too few are left."""
        self._left -= steps
        if self._left < 0:
            raise BudgetSpentError(
                f"the schema is too complex: its check needs more than {self._steps} steps; "
                "use fewer union branches, fields and stored versions, or raise schemaCheckMaxSteps"
            )

    def spend_bytes(self, size: int) -> None:
        """Count the parsing of `size` bytes of JSON. BudgetSpentError."""
        self.spend(1 + size // _BYTES_PER_STEP)


BOUNDS = SchemaBounds()


class Checks:
    """Runs the checks of one registry: short ones at once, long ones one after the other in a thread."""

    def __init__(self, bounds: SchemaBounds) -> None:
        self._bounds = bounds
        self._thread = SideThread("schemas")
        self._waiting = 0

    async def run(self, work: Callable[[Budget], T]) -> T:
        """Return the result of `work`, which may run twice. BudgetSpentError; TooManyOperationsError."""
        at_once = min(_STEPS_AT_ONCE, self._bounds.steps_max)
        try:
            return work(Budget(at_once))
        except BudgetSpentError:
            if at_once == self._bounds.steps_max:
                raise
        if self._waiting >= self._bounds.waiting_max:
            raise TooManyOperationsError(f"{self._waiting} checks of large schemas are waiting; try again later")
        self._waiting += 1
        try:
            budget = Budget(self._bounds.steps_max)
            return await self._thread.run(lambda: work(budget))
        finally:
            self._waiting -= 1
