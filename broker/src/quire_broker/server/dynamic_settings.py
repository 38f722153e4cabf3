"""Settings that administrators change while brokers run: the rates of topics without policies and of whole brokers, and
the time that an orderly end may take. Each broker of the cluster uses a change as soon as it notices it.

    /admin/configuration   {name: value}, as in Pulsar; every value is a text

A value in the node goes before the broker's own configuration. One that is not valid is logged and not used: other
brokers write the node, too.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from quire_bookie.dataclass import dataclass
from quire_bookie.metadata.retrying import with_retries
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.settings.declared import settings_of
from quire_broker.errors import NotAllowedError
from quire_broker.policies.fields import INT_MAX
from quire_broker.policies.store import CONFIGURATION, Json, change_json, decode_json
from quire_broker.settings.rates import RateSettings

STOP: Final = "brokerShutdownTimeoutMs"
_FIELDS: Final = {one.key: (field, one.range.get("ge", 0)) for field, one in settings_of(RateSettings).items()}
NAMES: Final = (STOP, *_FIELDS)
"""The settings that can be changed."""
_SHOWN_CHARACTERS: Final = 100
log = logging.getLogger("quire.broker")


@dataclass(frozen=True, slots=True)
class Changeable:
    """Values of these settings."""

    rates: RateSettings
    stop_s: float


def flaw_of_setting(name: str, value: str) -> str | None:
    """Return why a setting cannot have a value while brokers run; None: it can. Pure."""
    if name not in NAMES:
        remedy = "change the broker's configuration and restart it; GET .../brokers/configuration lists those that can"
        return f"{name[:_SHOWN_CHARACTERS]!r} cannot be changed at run time: {remedy}"
    low, readable = 1 if name == STOP else _FIELDS[name][1], value.isascii() and value.isdecimal()
    if not readable or len(value) > len(str(INT_MAX)) or not low <= int(value) <= INT_MAX:
        return f"{name} is {value[:_SHOWN_CHARACTERS]!r}; use an integer from {low} to {INT_MAX}"
    return None


def changed_by(base: Changeable, values: Mapping[str, Any]) -> Changeable:
    """Return the values in force: those of the node, where they are valid, over those of the configuration. Pure."""
    good = {name: int(value) for name, value in values.items() if flaw_of_setting(name, str(value)) is None}
    rates = {_FIELDS[name][0]: number for name, number in good.items() if name in _FIELDS}
    stop_s = good[STOP] / 1000 if STOP in good else base.stop_s
    return Changeable(replace(base.rates, **rates), stop_s)


class DynamicSettings:
    """Reads and changes the node. Errors of the metadata store are passed on unchanged."""

    def __init__(self, metadata: MetadataStore, base: Changeable, use: Callable[[Changeable], Awaitable[None]]) -> None:
        """`base`: of the configuration; `use` applies other values."""
        self._metadata = metadata
        self._base = self.in_force = base
        self._use = use

    async def values(self) -> Json:
        """Return the values in the node."""
        node = await self._metadata.get(CONFIGURATION)
        return {} if node is None else decode_json(CONFIGURATION, node.value)

    async def change(self, name: str, value: str | None) -> None:
        """Store a value and use it, or return to the configuration with None. NotAllowedError."""
        flaw = flaw_of_setting(name, "1" if value is None else value)
        if flaw is not None:
            raise NotAllowedError(flaw)

        def on_values(values: Json) -> None:
            values.pop(name, None)
            if value is not None:
                values[name] = value

        await self._apply(await change_json(self._metadata, CONFIGURATION, on_values))

    async def load(self) -> None:
        """Use the values in the node. Waits until the metadata store answers."""
        await with_retries(self._load, f"read {CONFIGURATION}", log.info)

    async def _load(self) -> None:
        await self._apply(await self.values())

    async def _apply(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            flaw = flaw_of_setting(name, str(value))
            if flaw is not None:
                log.warning("%s: a value is not used: %s", CONFIGURATION, flaw)
        wanted = changed_by(self._base, values)
        if wanted != self.in_force:
            self.in_force = wanted
            await self._use(wanted)
