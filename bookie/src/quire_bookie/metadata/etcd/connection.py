"""Calls an etcd cluster: endpoint failover, authentication, new channels for new certificates. Reports of each failed
call whether it may have happened; knows nothing of nodes.

A call goes to one member at a time, the one that answered last. It moves to the next member when it certainly did not
happen: the connection failed, or the member refused it before proposing it (no leader, overloaded). A read also moves
on after a timeout or a broken connection. The outcome of a write that was sent and not answered is unknown; it is never
sent again from here.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from quire_bookie.dataclass import dataclass
from quire_bookie.env.background import start_background
from quire_bookie.env.backoff import Backoff
from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import (
    MetadataError,
    MetadataUnavailableError,
    MetadataUnknownError,
)
from quire_bookie.limits import METADATA_ATTEMPT_TIMEOUT_S, METADATA_RETRY_BACKOFF_S, MIB
from quire_bookie.metadata.etcd.credentials import EtcdCertificates, user_and_password
from quire_bookie.metadata.etcd.members import new_endpoints
from quire_bookie.metadata.etcd.proto import rpc_pb2 as rpc
from quire_bookie.metadata.store import MetadataStats
from quire_bookie.metadata.url import EtcdLocation
from quire_bookie.settings.metadata import MetadataSettings

_log = logging.getLogger("quire.metadata.etcd")

_REASON_TIMEOUT_S = 0.5
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * MIB),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # etcd closes connections that ping more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of etcd's API."""

    path: str
    response: type[Message]
    write: bool = False


RANGE = Method("/etcdserverpb.KV/Range", rpc.RangeResponse)
PUT = Method("/etcdserverpb.KV/Put", rpc.PutResponse, write=True)
DELETE_RANGE = Method("/etcdserverpb.KV/DeleteRange", rpc.DeleteRangeResponse, write=True)
TXN = Method("/etcdserverpb.KV/Txn", rpc.TxnResponse, write=True)
READ_TXN = Method("/etcdserverpb.KV/Txn", rpc.TxnResponse)
LEASE_GRANT = Method("/etcdserverpb.Lease/LeaseGrant", rpc.LeaseGrantResponse)
LEASE_REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", rpc.LeaseRevokeResponse)
LEASE_KEEP_ALIVE = Method("/etcdserverpb.Lease/LeaseKeepAlive", rpc.LeaseKeepAliveResponse)
LEASE_TIME_TO_LIVE = Method("/etcdserverpb.Lease/LeaseTimeToLive", rpc.LeaseTimeToLiveResponse)
WATCH = Method("/etcdserverpb.Watch/Watch", rpc.WatchResponse)
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", rpc.AuthenticateResponse)
MEMBER_LIST = Method("/etcdserverpb.Cluster/MemberList", rpc.MemberListResponse)


class LeaseGoneError(MetadataError):
    """etcd does not know the lease, or no longer does. Nothing was written."""


class CompactedError(MetadataError):
    """The requested revision is no longer kept."""


class TooLargeError(MetadataError):
    """The response exceeds the size of a message: request less at once."""


class UserRefusedError(MetadataUnavailableError):
    """etcd does not accept the user, the password or what the user asks for. Nothing was done.

    Unavailable, because an administrator may withdraw a user for a while: what waits for etcd must then wait as well.
    """


class UnreadableError(MetadataUnavailableError):
    """A response that does not parse. The request may have been done."""


class Fault(Enum):
    """Consequence of a failed call."""

    NOT_DONE = "not done"  # certainly; another member, or the same one later, may do it
    UNKNOWN = "unknown"  # it was sent
    TOKEN = "token"  # certainly not done: the token of the user expired
    FATAL = "fatal"  # certainly not done, and will not be


def classify(code: grpc.StatusCode, details: str) -> Fault:
    """Classify a status returned by etcd or gRPC."""
    if code is grpc.StatusCode.UNAVAILABLE:
        # "etcdserver: no leader" comes from the check before the proposal (the call carries `hasleader`).
        before = "failed to connect" in details or details == "etcdserver: no leader"
        return Fault.NOT_DONE if before else Fault.UNKNOWN
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Fault.FATAL if "larger than max" in details else Fault.NOT_DONE
    if code is grpc.StatusCode.UNAUTHENTICATED or "auth store is old" in details or "user name is empty" in details:
        return Fault.TOKEN
    refusals = (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
    )
    return Fault.FATAL if code in refusals else Fault.UNKNOWN


def refusal(code: grpc.StatusCode, details: str) -> MetadataError:
    """Return the error of a call that etcd refused permanently."""
    if code is grpc.StatusCode.NOT_FOUND and "lease" in details:
        return LeaseGoneError(details)
    if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in details:
        return CompactedError(details)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return TooLargeError(details)
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return UserRefusedError(f"{details}; grant the user read and write on all keys that start with /")
    return MetadataError(f"etcd refused the request: {details or code.name}")


class EtcdConnection:
    """Holds one channel per member, and uses one of them. Call `open` before the first call."""

    def __init__(self, location: EtcdLocation, settings: MetadataSettings, stats: MetadataStats) -> None:
        self._settings = settings
        self._stats = stats
        self._chance = SystemChance()
        self._endpoints = list(location.endpoints)
        with_tls = location.tls or settings.ca_path is not None or settings.cert_path is not None
        self._certificates = EtcdCertificates(settings) if with_tls else None
        self._credentials: grpc.ChannelCredentials | None = None
        self._channels: list[grpc.aio.Channel] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: set[EtcdStream] = set()
        self._current = 0
        self.breaks = 0
        """How often a member was unreachable, or did not answer a call or stream."""
        self._token: str | None = None
        self._authenticating = asyncio.Lock()
        self._closed = False

    async def open(self) -> None:
        """Create the channels, and follow changes of the certificate files. ConfigError for invalid files."""
        if self._certificates is not None:
            self._credentials = await self._certificates.open()
        self._channels = [_channel(endpoint, self._credentials) for endpoint in self._endpoints]
        if self._certificates is not None and self._settings.tls_refresh_s > 0:
            self._start_task(self._follow(self._certificates), "etcd-certificates")
        if self._settings.members_refresh_s > 0:
            self._start_task(self._follow_members(), "etcd-members")

    async def _follow(self, certificates: EtcdCertificates) -> None:
        while True:
            await asyncio.sleep(self._settings.tls_refresh_s)
            credentials = await certificates.changed()
            if credentials is not None:
                self._renew(credentials)

    async def _follow_members(self) -> None:
        """Add the addresses that members advertise. None is removed: running calls know theirs by its index."""
        while True:
            try:
                answer = await self.call(MEMBER_LIST, rpc.MemberListRequest(linearizable=True))
            except MetadataError as error:
                _log.debug("etcd does not list its members: %s", error)
            else:
                for endpoint in new_endpoints(self._endpoints, answer, tls=self._certificates is not None):
                    _log.info("etcd has another member, %s", endpoint)
                    self._endpoints.append(endpoint)
                    self._channels.append(_channel(endpoint, self._credentials))
            await asyncio.sleep(self._settings.members_refresh_s)

    def _renew(self, credentials: grpc.ChannelCredentials) -> None:
        """Switch to new channels. Running calls end on the old ones; the owners of streams open new ones."""
        self._credentials = credentials
        old, self._channels = self._channels, [_channel(endpoint, credentials) for endpoint in self._endpoints]
        self._stats.certificates_renewed += 1
        _log.info("reconnecting to etcd with new certificates")
        for stream in list(self._streams):
            stream.give_up("the certificates for etcd were renewed")
        for channel in old:
            self._start_task(channel.close(grace=2 * self._settings.operation_timeout_s), "etcd-old-channel")

    def _start_task(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = start_background(work, name, _log)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def call(self, method: Method, request: Message, *, timeout_s: float | None = None) -> Any:
        """Make one call and return its response.

        MetadataUnavailableError: certainly not done within the time. MetadataUnknownError: a write that may have
        happened. LeaseGoneError, CompactedError, TooLargeError, MetadataError: refused. A cancelled write may have
        happened.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._settings.operation_timeout_s if timeout_s is None else timeout_s)
        backoff = self.backoff()
        reason = "no answer"
        renewed = False
        while (left := deadline - loop.time()) > 0:
            index = await self._ready(deadline)
            try:
                return await self._attempt(index, method, request, min(left, self._attempt_timeout(method, left)))
            except grpc.aio.AioRpcError as error:
                code, reason = error.code(), error.details() or error.code().name
                fault = classify(code, reason)
                if fault is Fault.FATAL:
                    raise refusal(code, reason) from error
                if fault is not Fault.TOKEN:
                    self.breaks += 1
                if fault is Fault.UNKNOWN and method.write:
                    self._fail_over(index, reason)
                    self._stats.unknown_writes += 1
                    raise MetadataUnknownError(f"etcd did not answer a write: {reason}") from error
                if fault is Fault.TOKEN and not renewed:
                    renewed = True
                    self._token = None
                    continue
                if fault is Fault.TOKEN:
                    raise UserRefusedError(f"etcd does not accept the user: {reason}") from error
            except UserRefusedError:
                raise
            except UnreadableError as error:
                reason = str(error)
                self.breaks += 1
                if method.write:
                    self._fail_over(index, reason)
                    self._stats.unknown_writes += 1
                    raise MetadataUnknownError(f"etcd did not answer a write: {reason}") from error
            except MetadataUnavailableError as error:
                reason = str(error)  # the member did not authenticate us
            except asyncio.CancelledError:
                self._raise_if_closed(method)
                raise
            self._fail_over(index, reason)
            await asyncio.sleep(min(backoff.grow(), max(0.0, deadline - loop.time())))
        raise MetadataUnavailableError(f"etcd at {', '.join(self._endpoints)}: {reason}")

    async def stream(self, method: Method, *, timeout_s: float) -> "EtcdStream":
        """Open a bidirectional stream to the member in use. MetadataUnavailableError if no member is reachable."""
        index = await self._ready(asyncio.get_running_loop().time() + timeout_s)
        await self._authenticate(index, timeout_s)
        call = self._channels[index].stream_stream(method.path, request_serializer=_serialize)(
            metadata=self._metadata()
        )
        stream = EtcdStream(call, method, lambda error: self._stream_failed(index, error), self._streams.discard)
        self._streams.add(stream)
        return stream

    async def close(self) -> None:
        """Close all channels."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(channel.close() for channel in self._channels))

    def _raise_if_closed(self, method: Method) -> None:
        """Raise an error if the call was cancelled by closing the channels, and not by its caller."""
        task = asyncio.current_task()
        if not self._closed or (task is not None and task.cancelling()):
            return
        if method.write:
            raise MetadataUnknownError("the metadata store was closed during a write")
        raise MetadataUnavailableError("the metadata store is closed")

    def _attempt_timeout(self, method: Method, left: float) -> float:
        # Ending a write early would only turn a late response into an unknown outcome.
        return left if method.write else METADATA_ATTEMPT_TIMEOUT_S

    async def _attempt(self, index: int, method: Method, request: Message, timeout_s: float) -> Any:
        await self._authenticate(index, timeout_s)
        self._stats.calls += 1
        answer = await self._unary(index, method)(request, metadata=self._metadata(), timeout=timeout_s)
        return _parsed(method, answer)

    def _unary(self, index: int, method: Method) -> Any:
        return self._channels[index].unary_unary(method.path, request_serializer=_serialize)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        # With this header a member without a leader answers at once instead of waiting for one.
        leader = (("hasleader", "true"),)
        return leader if not self._token else (*leader, ("token", self._token))

    async def _authenticate(self, index: int, timeout_s: float) -> None:
        """Obtain a token if a user is configured and there is none. If that fails, the call is not made."""
        if self._settings.username is None or self._token is not None:
            return
        async with self._authenticating:
            if self._token is not None:
                return  # another call was faster
            name, password = await user_and_password(self._settings)
            request = rpc.AuthenticateRequest(name=name, password=password)
            try:
                answer = await self._unary(index, AUTHENTICATE)(request, timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                details = error.details() or error.code().name
                if "authentication is not enabled" in details:
                    self._token = ""  # like etcd's own clients: no user is needed then
                    return
                if classify(error.code(), details) in (Fault.NOT_DONE, Fault.UNKNOWN):
                    raise MetadataUnavailableError(f"etcd did not authenticate: {details}") from error
                raise UserRefusedError(f"etcd user {name!r}: {details}") from error
            token = _parsed(AUTHENTICATE, answer).token
            if not (token and token.isascii() and token.isprintable()):
                # It becomes a header: gRPC would refuse every further call without reaching etcd.
                raise MetadataUnavailableError("etcd did not authenticate: its token is not printable ASCII")
            self._token = token

    def backoff(self, longest_s: float = METADATA_RETRY_BACKOFF_S[1]) -> Backoff:
        """Return new pauses between attempts, up to `longest_s`. They vary, because all clients of a member retry."""
        shortest_s = METADATA_RETRY_BACKOFF_S[0]
        return Backoff((shortest_s, max(shortest_s, min(longest_s, METADATA_RETRY_BACKOFF_S[1]))), self._chance)

    async def _ready(self, deadline: float) -> int:
        """Return the index of a connected member, the one in use first. MetadataUnavailableError at the deadline."""
        loop = asyncio.get_running_loop()
        backoff = self.backoff()
        while True:
            if self._closed:
                raise MetadataUnavailableError("the metadata store is closed")
            for _ in self._channels:
                index = self._current
                left = deadline - loop.time()
                # With several members, one must not use all of the time.
                if await self._connect(index, left if len(self._channels) == 1 else min(left, 2.0)):
                    return index
                self._fail_over(index, "cannot connect")
            left = deadline - loop.time()
            if left <= 0:
                reason = await self._reason()
                raise MetadataUnavailableError(f"no etcd member of {', '.join(self._endpoints)} can be reached{reason}")
            await asyncio.sleep(min(backoff.grow(), left))

    async def _reason(self) -> str:
        """Return why the member in use cannot be reached, such as a certificate: only a failed call has that text."""
        channel = self._channels[self._current]
        if channel.get_state() is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            return ""
        try:
            request = rpc.RangeRequest(key=b"/", keys_only=True)
            await self._unary(self._current, RANGE)(request, timeout=_REASON_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return f": {error.details()}"
        return ""

    async def _connect(self, index: int, timeout_s: float) -> bool:
        state = self._channels[index].get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            return True
        self.breaks += 1
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                while state is not grpc.ChannelConnectivity.READY:
                    if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                        return False
                    await self._channels[index].wait_for_state_change(state)
                    # Read again: new certificates create new channels, and the old one must not be waited for.
                    state = self._channels[index].get_state(try_to_connect=True)
        except TimeoutError:
            return False
        return True

    def _fail_over(self, index: int, reason: str) -> None:
        if len(self._channels) > 1 and index == self._current:
            self._current = (index + 1) % len(self._channels)
            self._stats.failovers += 1
            _log.info("etcd member %s: %s; trying %s", self._endpoints[index], reason, self._endpoints[self._current])

    def _stream_failed(self, index: int, error: BaseException) -> None:
        self.breaks += 1
        details = str(error) or "no answer in time"
        if isinstance(error, grpc.aio.AioRpcError):
            details = error.details() or error.code().name
            if classify(error.code(), details) is Fault.TOKEN:
                self._token = None
        self._fail_over(index, details)


class EtcdStream:
    """A bidirectional stream. Every failure is a MetadataUnavailableError: open another stream."""

    def __init__(
        self,
        call: Any,
        method: Method,
        on_failure: Callable[[BaseException], None],
        on_end: "Callable[[EtcdStream], None]",
    ) -> None:
        self._call = call
        self._method = method
        self._on_failure = on_failure
        self._end_reason = ""
        call.add_done_callback(lambda _: on_end(self))

    async def send(self, request: Message) -> None:
        """Send one message."""
        try:
            await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise self._failed(error) from error
        except asyncio.CancelledError as error:
            self._raise_if_ended(error)
            raise

    async def receive(self) -> Any:
        """Return the next message. MetadataUnavailableError if the stream ended."""
        try:
            message = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise self._failed(error) from error
        except asyncio.CancelledError as error:
            self._raise_if_ended(error)
            raise
        if message is grpc.aio.EOF:
            raise MetadataUnavailableError("etcd ended the stream")
        try:
            return _parsed(self._method, message)
        except UnreadableError as error:
            self._on_failure(error)
            self._call.cancel()
            raise

    def cancel(self) -> None:
        """Close the stream."""
        self._call.cancel()

    def give_up(self, reason: str) -> None:
        """End the stream from outside: its reader receives MetadataUnavailableError with the reason."""
        self._end_reason = reason
        self._call.cancel()

    def _raise_if_ended(self, error: BaseException) -> None:
        """Raise MetadataUnavailableError if the stream was ended, unless the reader itself was cancelled."""
        task = asyncio.current_task()
        if self._end_reason and not (task is not None and task.cancelling()):
            raise MetadataUnavailableError(self._end_reason) from error

    def timed_out(self) -> None:
        """Close the stream because its member does not answer: the next one goes to another member."""
        self._on_failure(TimeoutError())
        self._call.cancel()

    def _failed(self, error: Exception) -> MetadataUnavailableError:
        if isinstance(error, grpc.aio.AioRpcError):
            self._on_failure(error)
            return MetadataUnavailableError(f"etcd stream: {error.details() or error.code().name}")
        return MetadataUnavailableError("the etcd stream has ended")


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _parsed(method: Method, data: bytes) -> Any:
    """Parse a response here and not in gRPC, which logs a trace and returns None for one that does not parse."""
    try:
        return method.response.FromString(data)
    except DecodeError as error:
        raise UnreadableError(f"a response of {len(data)} bytes to {method.path} does not parse") from error


def _channel(endpoint: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(endpoint, options=_CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(endpoint, credentials, options=_CHANNEL_OPTIONS)
