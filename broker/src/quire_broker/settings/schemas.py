"""Declares the limits of a schema registry."""

from quire_bookie.dataclass import dataclass
from quire_bookie.settings.declared import setting
from quire_broker.limits import SCHEMA_BYTES_MAX, SCHEMA_CHECK_STEPS_MAX, SCHEMA_CHECKS_WAITING_MAX


@dataclass(frozen=True, slots=True)
class SchemaBounds:
    """The limits of a registry."""

    bytes_max: int = setting(
        SCHEMA_BYTES_MAX,
        "schemaMaxBytes",
        "largest schema with its properties, in bytes",
        short="schema_bytes_max",
        ge=1024,
    )
    steps_max: int = setting(
        SCHEMA_CHECK_STEPS_MAX,
        "schemaCheckMaxSteps",
        "cost of one schema check; a step is one comparison of two types, or 50 bytes of schema",
        short="schema_check_steps_max",
        ge=1000,
    )
    """A check compares a schema with itself and with all relevant stored versions."""
    waiting_max: int = SCHEMA_CHECKS_WAITING_MAX
    """Concurrent long checks; one runs, the others wait."""
