"""Producers and consumers of one session at the brokers that own their topics.

attach   find the owner -> connect, unless the session is connected to it -> PRODUCER or SUBSCRIBE
gone     the broker closes the producer or consumer, or the connection ends: attach again, after a pause that grows
refused  the broker gives a reason that does not pass by itself: the session ends with it
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.errors import PeerProtocolError, QuireError
from quire_broker import limits
from quire_broker.errors import BrokerError, ServerError, ServiceNotReadyError
from quire_broker.names import TopicName
from quire_broker.server.broker_link import BrokerLink, LinkTarget, code_of, open_link
from quire_broker.settings.clients import SessionSettings
from quire_broker.wire.frames import AckRun, Frame, MessageFrame, SendRun, encode
from quire_broker.wire.kinds import PROTOCOL_VERSION, Kind
from quire_broker.wire.proto import pulsar_pb2 as pb

ANSWERS: Final[dict[int, str]] = {
    Kind.SUCCESS: "success",
    Kind.PRODUCER_SUCCESS: "producer_success",
    Kind.WATCH_TOPIC_LIST_SUCCESS: "watch_topic_list_success",
    Kind.ERROR: "error",
}
PASSING: Final = frozenset(
    {
        ServerError.UNKNOWN,
        ServerError.METADATA,
        ServerError.PERSISTENCE,
        ServerError.CONSUMER_BUSY,
        ServerError.SERVICE_NOT_READY,
        ServerError.TOO_MANY_REQUESTS,
        ServerError.PRODUCER_BUSY,
        ServerError.PRODUCER_BLOCKED_QUOTA_ERROR,
        ServerError.PRODUCER_BLOCKED_QUOTA_EXCEPTION,
    }
)
"""Reasons of brokers that pass by themselves."""
_OF_WATCHES: Final[dict[int, str]] = {
    Kind.WATCH_TOPIC_LIST_SUCCESS: "watch_topic_list_success",
    Kind.WATCH_TOPIC_UPDATE: "watch_topic_update",
}
_OF_PRODUCERS: Final[dict[int, str]] = {Kind.SEND_RECEIPT: "send_receipt", Kind.SEND_ERROR: "send_error"}
Find = Callable[[TopicName], Awaitable[LinkTarget]]


def hello(shown: tuple[str, str]) -> pb.CommandConnect:
    """Return the CONNECT of a session with the method and the credentials of its client; empty: none."""
    method, data = shown
    return pb.CommandConnect(
        client_version="Quire-WebSocket",
        protocol_version=PROTOCOL_VERSION,
        auth_method_name=method or "none",
        auth_data=data.encode(),
    )


class Links:
    """The connections of one session, one for each broker."""

    def __init__(self, find: Find, greeting: pb.CommandConnect, memory: ConnectionMemory) -> None:
        """`find`: returns the address of the broker that owns a topic; `greeting`: the CONNECT."""
        self._find = find
        self._hello = greeting
        self._memory = memory
        self._links: dict[str, BrokerLink] = {}
        self._opening = asyncio.Lock()
        self._attached: dict[int, Attachment] = {}
        self._last_number = 0
        self._held = False

    async def to_owner_of(self, topic: TopicName) -> BrokerLink:
        """Return the connection to the owner. QuireError."""
        target = await self._find(topic)
        key = str(target)
        async with self._opening:
            link = self._links.get(key)
            if link is None or not link.is_open:
                link = BrokerLink(self._hello, ANSWERS, self._received, partial(self._lost, key))
                await open_link(
                    link,
                    target,
                    self._memory,
                    keep_alive_s=SessionSettings().keep_alive_s,
                    timeout_s=limits.WEBSOCKET_CONNECT_S,
                )
                self._links[key] = link
                if self._held:
                    link.connection.hold()
            return link

    def add(self, attachment: "Attachment") -> int:
        """Return a new number for a producer or a consumer, and pass it what brokers send to this number."""
        self._last_number += 1
        self._attached[self._last_number] = attachment
        return self._last_number

    def remove(self, number: int) -> None:
        """Forget a number."""
        self._attached.pop(number, None)

    def hold(self) -> None:
        """Read no broker until `release`: the session is full."""
        self._held = True
        for link in self._links.values():
            link.connection.hold()

    def release(self) -> None:
        """Read all brokers again."""
        self._held = False
        for link in self._links.values():
            link.connection.release()

    def close(self) -> None:
        """Close all connections: the brokers remove the producers and consumers."""
        self._attached.clear()
        links, self._links = self._links, {}
        for link in links.values():
            link.close()

    def _received(self, frame: Frame) -> bool:
        """Take a frame that is no answer to a request."""
        if isinstance(frame, MessageFrame):
            if (consumer := self._attached.get(frame.command.message.consumer_id)) is not None:
                consumer.message(frame)
            return True
        if isinstance(frame, SendRun | AckRun):
            return False
        if (name := _OF_PRODUCERS.get(frame.type)) is not None:
            if (producer := self._attached.get(getattr(frame, name).producer_id)) is not None:
                producer.answered(frame)
            return True
        if (name := _OF_WATCHES.get(frame.type)) is not None:
            if (watch := self._attached.get(getattr(frame, name).watcher_id)) is not None:
                watch.listed(frame)
            return frame.type == Kind.WATCH_TOPIC_UPDATE
        if frame.type == Kind.CLOSE_PRODUCER:
            return self._detach(frame.close_producer.producer_id)
        if frame.type == Kind.CLOSE_CONSUMER:
            return self._detach(frame.close_consumer.consumer_id)
        if frame.type == Kind.REACHED_END_OF_TOPIC:
            if (consumer := self._attached.get(frame.reached_end_of_topic.consumer_id)) is not None:
                consumer.at_end = True
            return True
        return frame.type == Kind.ACTIVE_CONSUMER_CHANGE

    def _detach(self, number: int) -> bool:
        if (attachment := self._attached.get(number)) is not None:
            attachment.detach()
        return True

    def _lost(self, key: str) -> None:
        link = self._links.pop(key, None)
        for attachment in list(self._attached.values()):
            if link is not None and attachment.link is link:
                attachment.detach()


class Attachment(ABC):
    """One producer, consumer or watch of topics."""

    def __init__(self, links: Links, topic: TopicName) -> None:
        self._links = links
        self.topic = topic
        self.link: BrokerLink | None = None
        """None while it is not attached."""
        self.number = 0
        self.at_end = False
        """Whether the topic is terminated, and all its messages have been delivered."""
        self._gone = asyncio.Event()

    async def attach(self) -> None:
        """Attach at the owner of the topic. QuireError."""
        link = await self._links.to_owner_of(self.topic)
        self.number = self._links.add(self)
        self.link = link
        self._gone.clear()
        try:
            async with asyncio.timeout(limits.WEBSOCKET_ATTACH_S):
                await self._open(link)
        except TimeoutError as error:
            self.detach()
            link.close()  # the broker may still attach it
            raise ServiceNotReadyError(
                f"the broker of {self.topic} did not answer in {limits.WEBSOCKET_ATTACH_S:g} s"
            ) from error
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Note that the broker no longer has it."""
        self._links.remove(self.number)
        self.link = None
        self._gone.set()

    async def stay(self) -> None:
        """Attach again whenever the broker has closed it, until cancelled. QuireError: a reason that does not pass."""
        while True:
            await self._gone.wait()
            await asyncio.sleep(limits.WEBSOCKET_RETRY_MIN_S)
            await self.attach_in_time()

    async def attach_in_time(self) -> None:
        """Attach, and try again after pauses that grow. QuireError: a reason that does not pass."""
        pause_s = limits.WEBSOCKET_RETRY_MIN_S
        while True:
            try:
                return await self.attach()
            except QuireError as error:
                if isinstance(error, BrokerError) and code_of(error) not in PASSING:
                    raise
            pause_s = min(2 * pause_s, limits.WEBSOCKET_RETRY_MAX_S)
            await asyncio.sleep(pause_s)

    def send(self, command: pb.BaseCommand) -> bool:
        """Send a command that has no answer; return False while it is not attached."""
        if self.link is None:
            return False
        self.link.connection.write(encode(command))
        return True

    @abstractmethod
    async def _open(self, link: BrokerLink) -> None:
        """Attach on this connection."""

    def message(self, frame: MessageFrame) -> None:
        """Take a message. PeerProtocolError: only a consumer gets one."""
        raise PeerProtocolError("the broker sends a message to a producer")

    def answered(self, frame: pb.BaseCommand) -> None:
        """Take the answer to a send. PeerProtocolError: only a producer gets one."""
        raise PeerProtocolError("the broker answers a send to a consumer")

    def listed(self, frame: pb.BaseCommand) -> None:
        """Take a list of topics. PeerProtocolError: only a watch gets one."""
        raise PeerProtocolError("the broker sends a list of topics to a producer or a consumer")
