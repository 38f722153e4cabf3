"""Wraps the opening of a client, writer or reader: await it, or enter it with `async with`, which closes it."""

from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar


class Closable(Protocol):
    """The opened object."""

    async def __aenter__(self) -> Self:
        """Return the object itself."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the object."""
        ...


T = TypeVar("T", bound=Closable)


class Opening(Coroutine[Any, Any, T], Generic[T]):
    """A coroutine to await once, or to enter: `async with opening as opened`."""

    __slots__ = ("_opened", "_work")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._opened: T | None = None

    def send(self, value: Any) -> Any:
        """See Coroutine."""
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """See Coroutine."""
        return self._work.throw(*error)

    def close(self) -> None:
        """See Coroutine. If the coroutine was not started, nothing is opened."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._work.__await__()

    async def __aenter__(self) -> T:
        """Open the object."""
        self._opened = await self._work
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the object."""
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, trace)
