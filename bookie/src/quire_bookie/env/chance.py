"""The port for randomness: ids, jitter, choice of bookies. A simulation replays it from a seed."""

import os
import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Chance(Protocol):
    """A source of random choices."""

    def token(self, size: int) -> bytes:
        """Return `size` random bytes, unguessable in production."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """Return a float in [low, high]."""
        ...

    def sample(self, population: Sequence[T], count: int) -> list[T]:
        """Return `count` distinct members in random order."""
        ...


class SystemChance:
    """Randomness of the machine."""

    def __init__(self) -> None:
        self._random = random.Random(int.from_bytes(os.urandom(16), "big"))

    def token(self, size: int) -> bytes:
        """Return bytes from the operating system."""
        return os.urandom(size)

    def uniform(self, low: float, high: float) -> float:
        """Return a float in [low, high]."""
        return self._random.uniform(low, high)

    def sample(self, population: Sequence[T], count: int) -> list[T]:
        """Return distinct members in random order."""
        return self._random.sample(population, count)
