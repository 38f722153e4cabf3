"""A decoded value together with the version of its node: what a compare-and-set needs."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """`value` as it was at `version` of its node."""

    value: T
    version: int
