"""A broken variant: production code with one rule removed by a patch, for one run."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock


@dataclass(frozen=True, slots=True)
class Variant:
    """One broken variant.

    `name`: the removed rule. `scenario` catches it; `seed` is one that did when this was written, or None: no such seed
    is known yet.
    """

    name: str
    scenario: str
    seed: int | None
    patches: Callable[[], tuple[Any, ...]]

    def applied(self) -> ExitStack:
        """Return a context in which production code is broken."""
        stack = ExitStack()
        for patch in self.patches():
            stack.enter_context(patch)
        return stack


def replaced(owner: object, name: str, by: object) -> Any:
    """Return a patch that replaces an attribute of a class or module."""
    return mock.patch.object(owner, name, by)
