"""What a deliberately broken variant of the protocol is: a rule left out of production code by a patch, for one run."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock


@dataclass(frozen=True, slots=True)
class Variant:
    """`name`: the rule that is left out. `scenario` finds it; `seed` is one that did when this was written, or None:
    it ought to be found, and no seed is known yet that does.
    """

    name: str
    scenario: str
    seed: int | None
    patches: Callable[[], tuple[Any, ...]]

    def applied(self) -> ExitStack:
        """Enter it, and production code is broken until it is left."""
        stack = ExitStack()
        for patch in self.patches():
            stack.enter_context(patch)
        return stack


def replaced(owner: object, name: str, by: object) -> Any:
    """Something of a class or module is something else meanwhile."""
    return mock.patch.object(owner, name, by)
