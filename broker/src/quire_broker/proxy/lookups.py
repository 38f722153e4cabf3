"""Answers what a client asks before it connects to a broker, by asking brokers on links of that client.

    LOOKUP                     redirects are followed here, since the client cannot; the answer names the owner and
                               tells the client to connect through the proxy
    PARTITIONED_METADATA,      the answer of any broker, unchanged
    GET_TOPICS_OF_NAMESPACE,
    GET_SCHEMA

The number of questions that wait is bounded, for one client and for all. Every question is answered.
"""

import asyncio
import logging
from collections.abc import Callable

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import QuireError
from quire_bookie.limits import WAITING_REQUEST_BYTES
from quire_broker import limits
from quire_broker.errors import BrokerError, ServerError, ServiceNotReadyError
from quire_broker.proxy.parts import ProxyParts
from quire_broker.proxy.targets import Address
from quire_broker.server.broker_link import BrokerLink, RefusedByBrokerError, code_of
from quire_broker.server.session import Refuse
from quire_broker.wire import commands
from quire_broker.wire.frames import encode
from quire_broker.wire.kinds import Kind, LookupType
from quire_broker.wire.proto import pulsar_pb2 as pb

log = logging.getLogger("quire.proxy")
_ORIGINAL = ("original_principal", "original_auth_data", "original_auth_method")


@dataclass(frozen=True, slots=True)
class Question:
    """A kind of request: its field, that of its answer, how it is refused, and its counters in ProxyStats."""

    name: str
    answer: str
    refuse: Refuse
    counter: str


def _schema_failed(request_id: int, code: ServerError, message: str) -> bytes:
    return commands.schema_failed(Kind.GET_SCHEMA_RESPONSE, request_id, code, message)


QUESTIONS: dict[int, Question] = {
    Kind.PARTITIONED_METADATA: Question(
        "partition_metadata", "partition_metadata_response", commands.partitions_failed, "partitions"
    ),
    Kind.LOOKUP: Question("lookup", "lookup_response", commands.lookup_failed, "lookups"),
    Kind.GET_TOPICS_OF_NAMESPACE: Question(
        "get_topics_of_namespace", "get_topics_of_namespace_response", commands.error, "topics"
    ),
    Kind.GET_SCHEMA: Question("get_schema", "get_schema_response", _schema_failed, "schemas"),
}


class Lookups:
    """The questions of one client."""

    def __init__(
        self, parts: ProxyParts, hello: pb.CommandConnect, write: Callable[[bytes], None], on_idle: Callable[[], None]
    ) -> None:
        """`hello`: the CONNECT that brokers get; `write`: sends to the client; `on_idle`: called after each answer."""
        self._parts = parts
        self._hello = hello
        self._write = write
        self._on_idle = on_idle
        self._links: dict[Address, BrokerLink] = {}
        self._opening: dict[Address, asyncio.Future[BrokerLink]] = {}
        self._closed = False
        self.running = 0

    def begin(self, command: pb.BaseCommand, question: Question) -> None:
        """Answer a question, now or later."""
        stats, bounds = self._parts.stats, self._parts.limits
        setattr(stats, question.counter, getattr(stats, question.counter) + 1)
        request_id = getattr(command, question.name).request_id
        if stats.lookups_running >= bounds.lookups_max or self.running >= limits.PROXY_LOOKUPS_PER_CONNECTION_MAX:
            rejected = f"{question.counter}_rejected"
            setattr(stats, rejected, getattr(stats, rejected) + 1)
            reason = "too many lookups at once (maxConcurrentLookupRequests): try again"
            self._write(question.refuse(request_id, ServerError.SERVICE_NOT_READY, reason))
            return
        stats.lookups_running += 1
        self.running += 1
        # Twice, because a parsed command needs more memory than its bytes.
        size_bytes = WAITING_REQUEST_BYTES + 2 * command.ByteSize()
        self._parts.memory.hold(size_bytes)
        self._parts.background.start(self._work(command, question, request_id, size_bytes), question.name)

    def close(self) -> None:
        """Close the links; questions that wait are not answered."""
        self._closed = True
        links, self._links = self._links, {}
        for link in links.values():
            link.close()

    async def _work(self, command: pb.BaseCommand, question: Question, request_id: int, size_bytes: int) -> None:
        try:
            self._write(await self._answer(command, question, request_id))
        finally:
            self._parts.memory.let_go(size_bytes)
            self._parts.stats.lookups_running -= 1
            self.running -= 1
            self._on_idle()

    async def _answer(self, command: pb.BaseCommand, question: Question, request_id: int) -> bytes:
        timeout_s = self._parts.limits.lookup_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                if question.name == "lookup":
                    return await self._look_up(command, request_id)
                return await self._pass_on(command, question, request_id)
        except BrokerError as error:
            return question.refuse(request_id, code_of(error), str(error))
        except TimeoutError:
            reason = f"no broker answered in {timeout_s:g} s"
            return question.refuse(request_id, ServerError.SERVICE_NOT_READY, reason)
        except QuireError as error:
            return question.refuse(request_id, ServerError.SERVICE_NOT_READY, str(error))
        except Exception as error:
            log.exception("%s failed", question.name)
            return question.refuse(request_id, ServerError.UNKNOWN, f"internal error: {type(error).__name__}")

    async def _pass_on(self, command: pb.BaseCommand, question: Question, request_id: int) -> bytes:
        answer = await self._ask(command, question, None)
        getattr(answer, question.answer).request_id = request_id
        return encode(answer)

    async def _look_up(self, command: pb.BaseCommand, request_id: int) -> bytes:
        question, address = QUESTIONS[Kind.LOOKUP], None
        # The proxy connects inside the cluster: names of listeners are for clients that connect themselves.
        command.lookup.ClearField("advertised_listener_name")
        for _ in range(limits.PROXY_LOOKUP_HOPS_MAX):
            found = (await self._ask(command, question, address)).lookup_response
            if found.response == LookupType.FAILED:
                raise RefusedByBrokerError(found.error, found.message)
            url = found.brokerServiceUrlTls if self._parts.connector.uses_tls else found.brokerServiceUrl
            if not url:
                kind = "with" if self._parts.connector.uses_tls else "without"
                raise ServiceNotReadyError(f"the owner of the topic has no port {kind} TLS, which the proxy uses")
            try:
                address = self._parts.targets.check(url)
            except ServiceNotReadyError as error:
                log.warning("brokers name an owner to which the proxy does not connect: %s", error)
                raise
            if found.response == LookupType.CONNECT:
                # The client may use TLS towards the proxy or not: it finds the same address in either case.
                return commands.lookup(
                    request_id, LookupType.CONNECT, url, url_tls=url, authoritative=True, proxied=True
                )
            command.lookup.authoritative = found.authoritative
        raise ServiceNotReadyError(f"{limits.PROXY_LOOKUP_HOPS_MAX} brokers named another owner: try again")

    async def _ask(self, command: pb.BaseCommand, question: Question, address: Address | None) -> pb.BaseCommand:
        """Return the answer of the broker at `address`, or of any. RefusedByBrokerError, ServiceNotReadyError."""
        for name in _ORIGINAL:
            if name in getattr(command, question.name).DESCRIPTOR.fields_by_name:
                getattr(command, question.name).ClearField(name)  # CONNECT has named the client already
        link = await (self._any_link() if address is None else self._link(address))
        answer = await link.ask(command, question.name)
        if not answer.HasField(question.answer):
            raise ServiceNotReadyError("the broker gave an answer of another kind")
        return answer

    async def _any_link(self) -> BrokerLink:
        """Return an open link, else one to the first broker that accepts it."""
        for link in self._links.values():
            if link.is_open:
                return link
        natives = [broker.native for broker in self._parts.book.brokers() if broker.native is not None]
        for number, address in enumerate(natives, 1):
            try:
                return await self._link(address)
            except ServiceNotReadyError as error:
                if number == len(natives):
                    raise
                log.info("another broker is asked: %s", error)
        raise ServiceNotReadyError("the proxy knows no broker")

    async def _link(self, address: Address) -> BrokerLink:
        link = self._links.get(address)
        if link is not None and link.is_open:
            return link
        running = self._opening.get(address)
        if running is None:
            self._links = {where: each for where, each in self._links.items() if each.is_open}
            if len(self._links) + len(self._opening) >= limits.PROXY_LINKS_MAX:
                raise ServiceNotReadyError(f"the client's topics have more than {limits.PROXY_LINKS_MAX} owners")
            running = self._opening[address] = self._parts.background.spawn(
                self._open(address), f"connect to {address}"
            )
        return await asyncio.shield(running)

    async def _open(self, address: Address) -> BrokerLink:
        try:
            link = await self._parts.connector.connect(address, self._hello)
        finally:
            del self._opening[address]
        if self._closed:
            link.close()
            raise ServiceNotReadyError("the client is gone")
        self._links[address] = link
        return link
