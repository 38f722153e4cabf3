"""An in-memory network between nodes: delay, reordering between connections, stalls, partitions, broken connections.

Bytes of one connection and direction arrive in order, cut into pieces at random. A partition, of both directions or of
one, holds them back; a connection that was held for longer than `reset_after_s` breaks. A dead node's connections break
at its peers. `strand` breaks one end while its sent bytes still arrive, later: bytes that it repeats on a new
connection arrive twice, and in another order. `strand_next` and `silence_after_answer` do this at the most critical
moment: with the first bytes of a connection, and after the first response. `miss_add` and `answer_twice` simulate a
bookie that handles single adds wrongly.
"""

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.sim.odd_adds import MissedAdd, answered_twice
from tests.sim.wrong_responses import V3_FIRST_BYTE, wrong_v3_responses

if TYPE_CHECKING:
    from tests.sim.loop import Node, SimLoop

HIGH_WATER_BYTES = 256 * 1024
BOOKIE_PORT = 3181
_LENGTH_BYTES = 4
_READ_OPCODE = 2
_ENTRY_ANSWER_BYTES_MIN = 4 + 4 + 8 + 8 + 36
"""A V2 response to a read: header, status, two ids, and an entry's own header and digest."""


class SimNetwork:
    """Owns all connections of a simulation, and their faults."""

    def __init__(self, loop: "SimLoop", seed: int) -> None:
        self.loop = loop
        self.chance = random.Random(seed ^ 0x5EED)
        self.delay_s = (0.0001, 0.002)
        self.stall_chance = 0.0
        self.reset_after_s = 15.0
        self.corrupted_hosts: set[str] = set()
        """Hosts of bookies whose entries are served with one byte changed."""
        self._listeners: dict[tuple[str, int], SimServer] = {}
        self._connections: set[SimTransport] = set()
        self._cut: set[tuple[str, str]] = set()
        """Pairs of hosts (source, target) between which no bytes pass."""
        self._strand_next: dict[tuple[str, str], float] = {}
        self._silence_next: set[tuple[str, str]] = set()
        self._missed: dict[tuple[str, str], MissedAdd] = {}
        self._twice: set[tuple[str, str]] = set()
        self._next_port = 40_000

    # ---- faults
    def partition(self, one: str, other: str) -> None:
        """Hold back all bytes between two hosts until `heal`."""
        self._cut |= {(one, other), (other, one)}

    def cut_one_way(self, source: str, target: str) -> None:
        """Hold back all bytes from one host to another until `heal`; the other direction works."""
        self._cut.add((source, target))

    def restore_one_way(self, source: str, target: str) -> None:
        """Let bytes from one host to another pass again, including those held back."""
        self._cut.discard((source, target))
        for transport in sorted(self._connections, key=lambda t: t.number):
            transport.pump()

    def strand_next(self, host: str, other: str, late_s: float) -> None:
        """Strand the connection with the next bytes that `host` sends to `other`; they arrive up to `late_s` later."""
        self._strand_next[(host, other)] = late_s

    def silence_after_answer(self, host: str, other: str) -> None:
        """Cut the direction back to `host` once it has sent to `other`, until `heal` or `restore_one_way`."""
        self._silence_next.add((host, other))

    def miss_add(self, host: str, bookie: str, *, refuses: bool) -> None:
        """Let `bookie` drop the next add of `host` and its repetitions until `heal`; it stores later adds."""
        self._missed[(host, bookie)] = MissedAdd(refuses)

    def answer_twice(self, bookie: str, host: str) -> None:
        """Let `bookie` acknowledge each add of `host` twice until `heal`."""
        self._twice.add((bookie, host))

    def altered(self, transport: "SimTransport", data: bytes) -> bytes:
        """Return the bytes that are sent for a write, after the changes of `miss_add` and `answer_twice`."""
        pair = (transport.local_host, transport.remote_host)
        if pair in self._twice:
            return answered_twice(data)
        missed = self._missed.get(pair)
        if missed is None:
            return data
        data, refusals = missed.pass_on(data)
        if refusals:
            transport.arrive(refusals)
        return data

    def sent(self, transport: "SimTransport") -> None:
        """Apply `strand_next` and `silence_after_answer` after an end has sent bytes."""
        pair = (transport.local_host, transport.remote_host)
        late_s = self._strand_next.pop(pair, None)
        if late_s is not None:
            transport._schedule(transport.strand, late_s)
        if pair in self._silence_next:
            self._silence_next.discard(pair)
            self._cut.add((pair[1], pair[0]))

    def heal(self) -> None:
        """End all partitions and other faults; bytes held back arrive."""
        self._cut.clear()
        self._strand_next.clear()
        self._silence_next.clear()
        self._missed.clear()
        self._twice.clear()
        for transport in sorted(self._connections, key=lambda t: t.number):
            transport.pump()

    def break_connections(self, host: str) -> None:
        """Reset every connection of a host."""
        for transport in sorted(self._connections, key=lambda t: t.number):
            if host in (transport.local_host, transport.remote_host):
                transport.lose(ConnectionResetError("simulated reset"))

    def strand(self, host: str, other: str, late_s: float) -> None:
        """Break connections of `host` to `other` for `host` at once; its sent bytes arrive up to `late_s` later."""
        for transport in sorted(self._connections, key=lambda t: t.number):
            if (transport.local_host, transport.remote_host) == (host, other):
                transport.strand(self.chance.uniform(0.0, late_s))

    def is_cut(self, source: str, target: str) -> bool:
        """Whether no bytes pass from one host to the other."""
        return (source, target) in self._cut

    def drop_node(self, node: "Node") -> None:
        """Remove the listeners of a dead process; its peers see resets after a while."""
        for key in [key for key, server in self._listeners.items() if server.node is node]:
            del self._listeners[key]
        for transport in sorted(self._connections, key=lambda t: t.number):
            if transport.node is node and transport.peer is not None:
                self._connections.discard(transport)
                transport.peer.remote_died()

    def draw_delay_s(self) -> float:
        """Draw the delay of one direction, sometimes with a stall as after a lost packet."""
        delay_s = self.chance.uniform(*self.delay_s)
        if self.stall_chance and self.chance.random() < self.stall_chance:
            delay_s += self.chance.uniform(0.2, 1.0)
        return delay_s

    # ---- the loop's two entries
    def listen(
        self,
        node: "Node | None",
        factory: Callable[[], asyncio.BaseProtocol],
        port: int | None,
        *,
        serving: bool = True,
    ) -> "SimServer":
        """Register a listener; port 0 or None draws one."""
        host = node.host if node else "outside"
        chosen = port or self._draw_port()
        if (host, chosen) in self._listeners:
            raise OSError(98, f"address {host}:{chosen} already in use")
        server = SimServer(self, node, host, chosen, factory, serving)
        self._listeners[(host, chosen)] = server
        return server

    async def connect(
        self, node: "Node | None", factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect: takes a round trip, fails at once without a listener, and hangs in a partition."""
        source = node.host if node else "outside"
        await asyncio.sleep(self.draw_delay_s() * 2)
        if self.is_cut(source, host) or self.is_cut(host, source):
            await asyncio.sleep(self.reset_after_s)
            raise TimeoutError(f"no route from {source} to {host}")
        server = self._listeners.get((host, int(port)))
        if server is None or not server.is_serving():
            raise ConnectionRefusedError(f"nothing listens at {host}:{port}")
        near_name, far_name = (source, self._draw_port()), (host, int(port))
        near = SimTransport(self, node, near_name, far_name, contextvars.copy_context())
        far = SimTransport(self, server.node, far_name, near_name, server.context)
        near.peer, far.peer = far, near
        self._connections |= {near, far}
        protocol = factory()
        far.context.run(lambda: far.attach(server.factory()))
        near.attach(protocol)
        return near, protocol

    def forget_listener(self, server: "SimServer") -> None:
        """Remove a closed listener."""
        self._listeners.pop((server.host, server.port), None)

    def forget(self, transport: "SimTransport") -> None:
        """Remove an ended connection."""
        self._connections.discard(transport)

    def _draw_port(self) -> int:
        self._next_port += 1
        return self._next_port


class SimServer:
    """The server that `create_server` returns."""

    def __init__(
        self,
        network: SimNetwork,
        node: "Node | None",
        host: str,
        port: int,
        factory: Callable[[], asyncio.BaseProtocol],
        serving: bool = True,
    ) -> None:
        self._network = network
        self.node = node
        self.host = host
        self.port = port
        self.factory = factory
        self.context = contextvars.copy_context()
        self._serving = serving

    async def start_serving(self) -> None:
        """Accept from now on."""
        self.serve()

    def serve(self) -> None:
        """Accept from now on."""
        self._serving = True

    @property
    def sockets(self) -> tuple["SimServer", ...]:
        """The server itself, which stands for its socket."""
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        """Return host and port."""
        return self.host, self.port

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Ignore the option: sockets are not simulated."""

    def is_serving(self) -> bool:
        """Whether it accepts."""
        return self._serving

    def close(self) -> None:
        """Stop accepting."""
        self._serving = False
        self._network.forget_listener(self)

    async def wait_closed(self) -> None:
        """Return at once: closing is immediate."""


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    _numbers = 0

    def __init__(
        self,
        network: SimNetwork,
        node: "Node | None",
        local: tuple[str, int],
        remote: tuple[str, int],
        context: contextvars.Context,
    ) -> None:
        super().__init__()
        SimTransport._numbers += 1
        self.number = SimTransport._numbers
        self._network = network
        self.node = node
        self.local_host = local[0]
        self.remote_host = remote[0]
        self._names = {"sockname": local, "peername": remote}
        self.context = context
        self.peer: SimTransport | None = None
        self._protocol: Any = None
        self._inbox: deque[tuple[float, bytes | None]] = deque()
        self._inbox_bytes = 0
        self._arrival_s = 0.0
        self._reading = True
        self._closing = False
        self._lost = False
        self._writing_paused = False
        self._high_bytes = HIGH_WATER_BYTES
        self._held_since: float | None = None
        self._pump_due = False

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """Connect the transport to its protocol."""
        self._protocol = protocol
        protocol.connection_made(self)

    # ---- asyncio's transport
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return `sockname` and `peername`; there is no socket."""
        return self._names.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Change the receiver."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The receiver."""
        return self._protocol  # type: ignore[no-any-return]

    def is_closing(self) -> bool:
        """Whether close was called or the connection is lost."""
        return self._closing or self._lost

    def is_reading(self) -> bool:
        """Whether reads are on."""
        return self._reading

    def pause_reading(self) -> None:
        """Buffer arriving bytes."""
        self._reading = False

    def resume_reading(self) -> None:
        """Deliver again."""
        self._reading = True
        self.pump()

    def write(self, data: Any) -> None:
        """Send; bytes after a loss vanish."""
        if self._lost or self._closing or self.peer is None or not len(data):
            return
        data = self._network.altered(self, bytes(data))
        if not data:
            return
        corrupted = self.local_host in self._network.corrupted_hosts and self._names["sockname"][1] == BOOKIE_PORT
        self.peer.arrive(_with_wrong_entries(data) if corrupted else data)
        self._network.sent(self)
        self._update_pressure()

    def writelines(self, list_of_data: Any) -> None:
        """Send all buffers as one write."""
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the sizes at which the writer is paused and resumed."""
        self._high_bytes = HIGH_WATER_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the peer has not received yet."""
        return self.peer._inbox_bytes if self.peer is not None else 0

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the low and high limits."""
        return self._high_bytes // 4, self._high_bytes

    def can_write_eof(self) -> bool:
        """Return False: half-closed connections are not simulated."""
        return False

    def close(self) -> None:
        """Close; the peer sees the end after all bytes written before."""
        if self._closing or self._lost:
            return
        self._closing = True
        if self.peer is not None:
            self.peer.arrive(None)
        self._schedule(self._end, None)

    def abort(self) -> None:
        """Drop the connection at once."""
        self.lose(None)

    # ---- the network's side
    def arrive(self, data: bytes | None) -> None:
        """Queue bytes (or the end) from the peer, in order, each after its delay."""
        self._arrival_s = max(self._arrival_s, self._network.loop.time() + self._network.draw_delay_s())
        self._inbox.append((self._arrival_s, data))
        self._inbox_bytes += len(data) if data else 0
        self.pump()

    def pump(self) -> None:
        """Schedule the next delivery unless it is scheduled."""
        if self._pump_due or self._lost or not self._inbox:
            return
        self._pump_due = True
        delay_s = max(0.0, self._inbox[0][0] - self._network.loop.time())
        self._schedule(self._deliver, delay_s=delay_s)

    def _deliver(self) -> None:
        self._pump_due = False
        if self._lost or not self._inbox or not self._reading:
            return
        if self._inbox[0][0] > self._network.loop.time() + 1e-9:
            self.pump()
            return
        if self._network.is_cut(self.remote_host, self.local_host):
            self._hold()
            return
        self._held_since = None
        _, data = self._inbox.popleft()
        if data is None:
            self._end(None)
            return
        size = len(data)
        if size > 1 and self._network.chance.random() < 0.3:
            size = self._network.chance.randrange(1, size)
            self._inbox.appendleft((self._network.loop.time(), data[size:]))
        self._inbox_bytes -= size
        self._receive(data[:size])
        if self.peer is not None:
            self.peer._schedule(self.peer._update_pressure)
        self.pump()

    def _hold(self) -> None:
        now = self._network.loop.time()
        self._held_since = now if self._held_since is None else self._held_since
        if now - self._held_since >= self._network.reset_after_s:
            self.lose(ConnectionResetError("held back for too long"))
            return
        self._pump_due = True
        self._schedule(self._deliver, delay_s=0.5)

    def _receive(self, data: bytes) -> None:
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            view = memoryview(data)
            while view:
                buffer: Any = self._protocol.get_buffer(len(view))
                taken = min(len(buffer), len(view))
                buffer[:taken] = view[:taken]
                self._protocol.buffer_updated(taken)
                view = view[taken:]
        else:
            self._protocol.data_received(data)

    def _update_pressure(self) -> None:
        waiting = self.get_write_buffer_size()
        if self._lost or self._protocol is None:
            return
        if waiting > self._high_bytes and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()
        elif waiting <= self._high_bytes // 4 and self._writing_paused:
            self._writing_paused = False
            self._protocol.resume_writing()

    def remote_died(self) -> None:
        """Schedule a reset after the death of the peer's process; a partition delays it further."""
        cut = self._network.is_cut(self.remote_host, self.local_host)
        delay_s = self._network.reset_after_s if cut else self._network.draw_delay_s()
        self._schedule(self.lose, ConnectionResetError("the peer died"), delay_s=delay_s)

    def strand(self, late_s: float) -> None:
        """Break this end; the other end receives the bytes in flight, and then the end, late."""
        if self._lost:
            return
        if self.peer is not None and not self.peer._lost:
            self.peer.delay_arrivals(late_s)
            self.peer.arrive(None)
        self._end(ConnectionResetError("simulated reset"))

    def delay_arrivals(self, late_s: float) -> None:
        """Delay all bytes in flight to this end by `late_s`."""
        self._inbox = deque((at_s + late_s, data) for at_s, data in self._inbox)
        self._arrival_s = max(self._arrival_s, self._network.loop.time()) + late_s

    def lose(self, error: BaseException | None) -> None:
        """Break this end; the other end follows."""
        if self._lost:
            return
        if self.peer is not None and not self.peer._lost and (self.peer.node is None or not self.peer.node.dead):
            self.peer._schedule(self.peer._end, error, delay_s=self._network.draw_delay_s())
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._network.forget(self)
        self._schedule(self._protocol.connection_lost, error)

    def _schedule(self, callback: Callable[..., object], *args: Any, delay_s: float = 0.0) -> None:
        self._network.loop.call_later(delay_s, callback, *args, context=self.context)


def _with_wrong_entries(data: bytes) -> bytes:
    """Change the last byte of each V2 read response. A buffer begins with a frame."""
    if data[_LENGTH_BYTES : _LENGTH_BYTES + 1] == V3_FIRST_BYTE:
        return wrong_v3_responses(data)
    changed, at = bytearray(data), 0
    while at + _LENGTH_BYTES + 4 <= len(data):
        size = int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
        end = at + _LENGTH_BYTES + size
        header = int.from_bytes(data[at + _LENGTH_BYTES : at + _LENGTH_BYTES + 4], "big")
        if (header >> 16) & 0xFF == _READ_OPCODE and size > _ENTRY_ANSWER_BYTES_MIN and end <= len(data):
            changed[end - 1] ^= 0x40
        at = end
    return bytes(changed)
