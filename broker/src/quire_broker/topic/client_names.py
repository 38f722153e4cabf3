"""Decides which names and properties of subscriptions, producers and consumers are refused. Pure.

Statistics show these names repeatedly, so they must be short. A control character could forge a log line or manipulate
the terminal of its reader.
"""

from collections.abc import Iterable
from typing import Protocol

from quire_bookie.control_characters import escaped, has_control_characters
from quire_broker.errors import NotAllowedError
from quire_broker.limits import PROPERTIES_CHARACTERS_MAX


class _Property(Protocol):
    key: str
    value: str


def check_name(what: str, name: str, characters_max: int, *, required: bool = False) -> None:
    """Raise NotAllowedError if a name is too long, has a control character, or is empty although it is required.

    `what`: subscription, producer or consumer.
    """
    if not name and required:
        raise NotAllowedError(f"the {what} name is empty: give it at least one character")
    if len(name) > characters_max:
        raise NotAllowedError(
            f"the {what} name has {len(name)} characters; the limit is {characters_max} (nameMaxCharacters): "
            "choose a shorter name"
        )
    if has_control_characters(name):
        raise NotAllowedError(f"the {what} name '{escaped(name)}' holds a control character: choose another name")


def check_properties(what: str, properties: Iterable[_Property]) -> None:
    """Raise NotAllowedError if keys and values together are too long. `what`: as for `check_name`."""
    check_size(what, sum(len(one.key) + len(one.value) for one in properties))


def check_size(what: str, size: int) -> None:
    """Raise NotAllowedError for properties that have more characters than the limit."""
    if size > PROPERTIES_CHARACTERS_MAX:
        raise NotAllowedError(
            f"the properties of the {what} have {size} characters; the limit is {PROPERTIES_CHARACTERS_MAX}: "
            "set fewer or shorter ones"
        )
