"""A deterministic event loop: virtual time, no threads, no sockets.

Production code runs on it unchanged: `loop.time`, timers and tasks are asyncio's own, `create_server` and
`create_connection` lead into the simulated network. Every callback belongs to the node in whose context it was
scheduled; once that node is dead, its callbacks never run again, so that no `finally` does something that a dead
process could not. Access that bypasses the ports (threads, executors, file descriptors) raises.
"""

import asyncio
import contextvars
import gc
import heapq
import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from tests.sim.network import SimNetwork
from tests.sim.plan import Plan

T = TypeVar("T")
H = TypeVar("H", bound=asyncio.Handle)
Held = tuple[asyncio.Handle, Callable[..., object], tuple[Any, ...], contextvars.Context]
COLLECTED_EVERY = 4000
"""Number of clock advances between two garbage collections."""
_node: contextvars.ContextVar["Node | None"] = contextvars.ContextVar("sim_node", default=None)


class SimDeadlockError(AssertionError):
    """Nothing is ready and no timer is set, but the scenario has not ended."""


class SimTimeLimitError(AssertionError):
    """The scenario exceeded its limit of virtual time."""


@dataclass(eq=False, slots=True)
class Node:
    """A simulated process with its own address. `incarnation` grows with each restart."""

    host: str
    incarnation: int = 0
    dead: bool = False
    held: list[Held] | None = None
    """The callbacks that wait for the end of a pause; None: it is not paused."""
    on_kill: list[Callable[[], None]] = field(default_factory=list)


def current_node() -> Node | None:
    """Return the node in whose context the caller runs."""
    return _node.get()


class _VirtualSelector:
    """Replaces the loop's selector: waiting advances the clock instead."""

    def __init__(self, loop: "SimLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        """Advance virtual time by `timeout`."""
        if timeout is None:
            raise SimDeadlockError("nothing is ready and no timer is set")
        if timeout > 0:
            self._loop.advance(timeout)
        return []

    def close(self) -> None:
        """Nothing to release."""


class SimLoop(asyncio.BaseEventLoop):
    """The event loop described above. `seed` determines every choice of the network."""

    def __init__(self, seed: int, *, time_limit_s: float = 3600.0) -> None:
        super().__init__()
        self._now = 0.0
        self._advances = 0
        self._time_limit_s = time_limit_s
        self._selector = _VirtualSelector(self)
        self._clock_resolution = 1e-9
        self.network = SimNetwork(self, seed)
        self.failures: list[str] = []
        self.plan = Plan()
        self._tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], Node | None] = weakref.WeakKeyDictionary()
        self._frozen: list[asyncio.Task[Any]] = []
        self.set_exception_handler(self._note_failure)

    # ---- time
    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def note(self, text: str) -> None:
        """Log an event for the analysis of a failing seed."""
        self.plan.events.append((self._now, text))

    def advance(self, seconds: float) -> None:
        """Move the clock to the next timer."""
        self._advances += 1
        if self._advances % COLLECTED_EVERY == 0:
            gc.collect()
        target = self._scheduled[0].when() if self._scheduled else self._now + seconds  # type: ignore[attr-defined]
        self._now = max(self._now, target)
        if self._now > self._time_limit_s:
            raise SimTimeLimitError(f"not done after {self._time_limit_s} virtual seconds")

    # ---- nodes
    def start_node(self, host: str, incarnation: int = 0) -> Node:
        """Start a new process at that address."""
        return Node(host, incarnation)

    def run_on(self, node: Node, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a task that belongs to `node`."""
        context = contextvars.copy_context()
        context.run(_node.set, node)
        return self.create_task(work, context=context)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> "asyncio.Task[T]":
        """Create a task as asyncio does, and record its node."""
        task: asyncio.Task[T] = super().create_task(coro, name=name, context=context)
        self._tasks[task] = _node.get() if context is None else context.get(_node)
        return task

    def kill(self, node: Node) -> None:
        """Cut the node's network and never run its callbacks again."""
        node.dead = True
        for task in [task for task, owner in self._tasks.items() if owner is node]:
            # Keep a reference: a collected coroutine would run its `finally`.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            self._frozen.append(task)
        for cut in node.on_kill:
            cut()
        self.network.drop_node(node)

    def pause(self, node: Node) -> None:
        """Stop a process without ending it, as SIGSTOP does: none of its callbacks runs until `resume`."""
        node.held = [] if node.held is None else node.held

    def resume(self, node: Node) -> None:
        """Let a paused process go on, with everything that became due meanwhile, in order."""
        held, node.held = node.held or [], None
        for handle, callback, args, context in held:
            if not handle.cancelled():
                self.call_soon(_unless_cancelled, handle, callback, args, context=context)

    # ---- scheduling, guarded by the life of the node
    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's, but silent once the node is dead (or the simulation over)."""
        if self.is_closed():
            return asyncio.Handle(callback, args, self, context)
        guarded = _guard(callback, context)
        return _with_handle(guarded, super().call_soon(guarded, *args, context=context))

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's, but silent once the node is dead (or the simulation over)."""
        if self.is_closed():
            return asyncio.TimerHandle(when, callback, args, self, context)
        guarded = _guard(callback, context)
        return _with_handle(guarded, super().call_at(when, guarded, *args, context=context))

    # ---- network
    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, *, start_serving: bool = True, **_: Any
    ) -> Any:
        """Listen at the current node's address; until `start_serving` the port is in use but refuses connections."""
        return self.network.listen(current_node(), protocol_factory, port, serving=start_serving)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Connect from the current node."""
        return await self.network.connect(current_node(), protocol_factory, host, port)

    # ---- unsupported operations
    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        """Fail: threads are outside the simulation."""
        raise AssertionError(f"{func} bypassed the ports: the simulation has no executor")

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: there are no events."""

    def _write_to_self(self) -> None:
        """Do nothing: only threads would need to wake the loop."""

    def _note_failure(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = f"{context.get('message')}: {error!r}"
        self.failures.append(text)
        logging.getLogger("quire.sim").error(text, exc_info=error)

    # ---- the end
    def finish(self) -> None:
        """Drop the remaining tasks without running them, and close."""
        for task in {*asyncio.all_tasks(self), *self._frozen}:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coro = task.get_coro()
            if inspect.iscoroutine(coro) and inspect.getcoroutinestate(coro) == inspect.CORO_CREATED:
                # The task never ran its first step: closing it runs none of its code and avoids a warning.
                coro.close()
        self._ready.clear()  # type: ignore[attr-defined]
        heapq.heapify(self._scheduled)  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self._frozen.clear()
        self.close()


class _Guarded:
    """A callback of a node: silent once the node is dead, and put off while it is paused, unless it is cancelled."""

    __slots__ = ("callback", "handle", "node")

    def __init__(self, callback: Callable[..., object], node: Node) -> None:
        self.callback, self.node = callback, node
        self.handle: asyncio.Handle

    def __call__(self, *args: Any) -> None:
        """Run it now, later or never."""
        if self.node.held is not None:
            self.node.held.append((self.handle, self.callback, args, contextvars.copy_context()))
        elif not self.node.dead:
            self.callback(*args)


def _guard(callback: Callable[..., object], context: contextvars.Context | None) -> Callable[..., object]:
    node = context.get(_node) if context is not None else _node.get()
    return callback if node is None else _Guarded(callback, node)


def _unless_cancelled(handle: asyncio.Handle, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
    if not handle.cancelled():  # by a callback that went on before it
        callback(*args)


def _with_handle(guarded: Callable[..., object], handle: H) -> H:
    if isinstance(guarded, _Guarded):
        guarded.handle = handle
    return handle


def simulate(work: Callable[[SimLoop], Coroutine[Any, Any, T]], *, seed: int, time_limit_s: float = 3600.0) -> T:
    """Run one scenario to its end on a new loop. Equal seeds give equal runs (under PYTHONHASHSEED=0).

    Garbage is collected at fixed steps of the loop, as the content of weak mappings depends on when that happens.
    """
    gc.disable()
    loop = SimLoop(seed, time_limit_s=time_limit_s)
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(work(loop))
    finally:
        asyncio.set_event_loop(None)
        loop.finish()
        del loop
        _collect_silently()
        gc.enable()


def _collect_silently() -> None:
    """Collect the objects of dead nodes now, and suppress their errors about a closed loop."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        gc.collect()
    finally:
        sys.unraisablehook = hook
