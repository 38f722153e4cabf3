"""Pairs a decoded value with the version of its node, for compare-and-set."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """`value` at `version` of its node."""

    value: T
    version: int
