"""The bounds of a schema, and the budget of steps that a check may cost.

A client chooses the schemas that it registers, so it chooses what a check costs: comparing two Avro unions takes the
product of their branches. Each step of a check is counted, and a check that needs more than the budget is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from quire_bookie.env.side_thread import SideThread
from quire_broker.errors import SchemaError, TooManyOperationsError
from quire_broker.limits import SCHEMA_BYTES_MAX, SCHEMA_CHECK_STEPS_MAX, SCHEMA_CHECKS_WAITING_MAX

DEPTH_MAX = 64
"""Levels of a schema that lie inside each other, also through the names of records."""
_BYTES_PER_STEP = 50
"""Parsing so much JSON costs about as much as one step of a check."""
_STEPS_AT_ONCE = 2_000
"""A check of up to this many steps, about 2 ms, runs on the event loop."""
T = TypeVar("T")


class BudgetSpentError(SchemaError):
    """The check of a schema costs more than it may."""


class Budget:
    """The steps that are left for one check."""

    __slots__ = ("_left", "_steps")

    def __init__(self, steps: int = SCHEMA_CHECK_STEPS_MAX) -> None:
        self._steps = self._left = steps

    def spend(self, steps: int = 1) -> None:
        """Count steps. BudgetSpentError: there are not enough left."""
        self._left -= steps
        if self._left < 0:
            raise BudgetSpentError(
                f"the schema is too complex: its check needs more than {self._steps} steps; "
                "use fewer union branches, fields and stored versions, or raise schemaCheckMaxSteps"
            )

    def spend_bytes(self, size: int) -> None:
        """Count the parsing of `size` bytes of JSON. BudgetSpentError."""
        self.spend(1 + size // _BYTES_PER_STEP)


@dataclass(frozen=True, slots=True)
class SchemaBounds:
    """The bounds of a registry."""

    bytes_max: int = SCHEMA_BYTES_MAX
    """Of one schema, properties included."""
    steps_max: int = SCHEMA_CHECK_STEPS_MAX
    """Of one check: a schema against itself and against all stored versions that count."""
    waiting_max: int = SCHEMA_CHECKS_WAITING_MAX
    """Long checks at one time; one runs, the others wait."""


BOUNDS = SchemaBounds()


class Checks:
    """Runs the checks of one registry: short ones at once, long ones one after the other in a thread."""

    def __init__(self, bounds: SchemaBounds) -> None:
        self._bounds = bounds
        self._thread = SideThread("schemas")
        self._waiting = 0

    async def run(self, work: Callable[[Budget], T]) -> T:
        """The result of `work`, which may run twice. BudgetSpentError; TooManyOperationsError."""
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
