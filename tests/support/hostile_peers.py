"""Clients that occupy a server's memory: some begin a frame and stop, some request much and never read.

Uses non-blocking sockets: a peer that its server does not read, or has closed, must not block the test.
"""

import re
import select
import selectors
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from quire_bookie.limits import MIB
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.wire import client_codec
from quire_broker.wire.frames import encode
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb

SEND_BUFFER_BYTES = 64 * 1024
QUIET_S = 1.0
"""A server that read nothing from any peer for this time has stopped reading."""
ANSWER_S = 60.0
_BLOCKS = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_V2_ADD_HEADER = 0x02010000
plain_or_tls = pytest.mark.parametrize(
    "secured", [pytest.param(False, id="in clear", marks=pytest.mark.slow), pytest.param(True, id="over TLS")]
)
"""Attacks over TLS by default, and without as slow tests."""


class Peers:
    """Sockets to one port. Each sends as far as the server reads, and reads only on request."""

    def __init__(self, port: int, count: int, tls: ssl.SSLContext | None = None, start_tls: bytes = b"") -> None:
        """`start_tls`: sent, and its frame of response read, before the handshake of TLS."""
        self._left: dict[socket.socket, memoryview] = {}
        self.sockets: list[socket.socket] = []
        for _ in range(count):
            peer = socket.socket()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SEND_BUFFER_BYTES)
            peer.connect(("127.0.0.1", port))
            if tls is not None:
                if start_tls:
                    peer.sendall(start_tls)
                    _read(peer, int.from_bytes(_read(peer, 4), "big"))
                peer = tls.wrap_socket(peer, server_hostname="localhost")
            peer.setblocking(False)
            self.sockets.append(peer)

    def send(self, data: bytes) -> int:
        """Send `data` on each socket until the server has read all of it or stops reading. Returns the bytes sent."""
        self._left = {peer: memoryview(data) for peer in self.sockets}
        taken = 0
        with selectors.DefaultSelector() as selector:
            for peer in self.sockets:
                selector.register(peer, selectors.EVENT_WRITE)
            while self._left:
                ready = selector.select(QUIET_S)
                if not ready:
                    break
                for key, _ in ready:
                    taken += self._push(selector, key.fileobj)  # type: ignore[arg-type]
        return taken

    def _push(self, selector: selectors.BaseSelector, peer: socket.socket) -> int:
        rest = self._left[peer]
        try:
            sent = peer.send(rest[: 256 * 1024])
        except _BLOCKS:
            return 0
        except OSError:  # the server closed it
            sent, rest = 0, rest[:0]
        if len(rest) > sent:
            self._left[peer] = rest[sent:]
        else:
            del self._left[peer]
            selector.unregister(peer)
        return sent

    def wait_for_answers(self) -> None:
        """Wait until each socket has received a response, which is discarded, or was closed."""
        for peer in self.sockets:
            select.select([peer], [], [], ANSWER_S)
            _is_closed(peer)

    def closed(self) -> int:
        """Return how many the server has closed; their pending responses are discarded."""
        return sum(map(_is_closed, self.sockets))

    def close(self) -> None:
        """Close all."""
        for peer in self.sockets:
            peer.close()

    def __enter__(self) -> "Peers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = peer.recv(size - len(data))
        assert more, "the server closed a peer before it began TLS"
        data += more
    return data


def _is_closed(peer: socket.socket) -> bool:
    try:
        while peer.recv(MIB):
            pass
    except _BLOCKS:
        return False
    except OSError:
        return True
    return True


def begun_add(sent_bytes: int, announced_bytes: int) -> bytes:
    """The first bytes of a V2 add to a bookie."""
    head = struct.pack(">iI", announced_bytes, _V2_ADD_HEADER) + b"k" * 20 + struct.pack(">qqqq", 7, 0, -1, 0)
    return head + bytes(sent_bytes - len(head))


def whole_add(ledger: int, entry: int, size_bytes: int) -> bytes:
    """A V2 add of a ledger without digest."""
    body = struct.pack(">qqqq", ledger, entry, entry - 1, size_bytes) + bytes(size_bytes)
    return b"".join(client_codec.v2_adds(b"k" * 20, [(body[:32], body[32:])]))


def reads(ledger: int, entries: Sequence[int]) -> bytes:
    """V2 reads."""
    return b"".join(client_codec.v2_read(LedgerId(ledger), EntryId(entry)) for entry in entries)


def connect() -> bytes:
    """CONNECT to a broker."""
    command = pb.BaseCommand(type=Kind.CONNECT)
    command.connect.client_version = "hostile"
    command.connect.protocol_version = 19
    return encode(command)


def subscribe(topic: str, subscription: str) -> bytes:
    """SUBSCRIBE of a reader, from the topic's begin on."""
    command = pb.BaseCommand(type=Kind.SUBSCRIBE)
    command.subscribe.topic = topic
    command.subscribe.subscription = subscription
    command.subscribe.subType = 0
    command.subscribe.consumer_id = 1
    command.subscribe.request_id = 1
    command.subscribe.durable = False
    command.subscribe.start_message_id.ledgerId = 0
    command.subscribe.start_message_id.entryId = 0
    return encode(command)


def flow(permits: int) -> bytes:
    """FLOW for the consumer of `subscribe`."""
    command = pb.BaseCommand(type=Kind.FLOW)
    command.flow.consumer_id = 1
    command.flow.messagePermits = permits
    return encode(command)


def begun_send(sent_bytes: int, announced_bytes: int) -> bytes:
    """The first bytes of a SEND to a broker."""
    command = pb.BaseCommand(type=Kind.SEND)
    command.send.producer_id = 1
    command.send.sequence_id = 0
    body = command.SerializeToString()
    head = struct.pack(">II", announced_bytes, len(body)) + body
    return head + bytes(sent_bytes - len(head))


def held_bytes(metrics: str) -> dict[str, float]:
    """Return what connections hold, by class, from the text of /metrics."""
    found = re.findall(r'^quire_connection_memory_bytes\{.*class="(\w+)".*\} (\S+)$', metrics, re.MULTILINE)
    return {name: float(value) for name, value in found}


def closed_for_memory(metrics: str, kind: str) -> float:
    """Return how many connections were closed for memory, by what they did, from the text of /metrics."""
    pattern = rf'^quire_connections_closed_for_memory(?:_total)?\{{.*reason="\w+_{kind}".*\}} (\S+)$'
    return sum(map(float, re.findall(pattern, metrics, re.MULTILINE)))


def resident_bytes(pid: int) -> int:
    """Return the RSS of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no VmRSS")


def peak_bytes(pid: int, seconds: float) -> int:
    """Return the largest RSS of a process within `seconds`."""
    peak, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        peak = max(peak, resident_bytes(pid))
        time.sleep(0.05)
    return peak
