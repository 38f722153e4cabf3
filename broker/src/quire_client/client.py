"""The client that programs use: opens producers, consumers and readers of one cluster's topics."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from quire_bookie.cli.client_access import ClientAccess
from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_client.brokers import Brokers
from quire_client.consumer import Consumer, Reader
from quire_client.message import MessageId
from quire_client.options import EARLIEST, ClientOptions, ConsumerOptions, ProducerOptions
from quire_client.producer import Producer


class Client:
    """Connects to one cluster, starting from the address of any of its brokers or proxies.

    async with Client("pulsar://localhost:6650") as client, client.producer("orders") as producer:
        await producer.send(b"one")
    """

    def __init__(
        self,
        url: str,
        access: ClientAccess | Callable[[], ClientAccess] | None = None,
        options: ClientOptions | None = None,
        *,
        clock: WallClock | None = None,
        chance: Chance | None = None,
    ) -> None:
        """See `Brokers`."""
        self.brokers = Brokers(url, access, options, clock=clock, chance=chance)
        """The brokers of the cluster, and the connections to them."""

    async def __aenter__(self) -> Self:
        """Connect, so that a wrong address or token fails here. BrokerRefusedError, ConfigError."""
        try:
            await self.brokers.connection(self.brokers.url)
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Close producers and consumers before: they fail."""
        self.brokers.close()

    def producer(self, topic: str, options: ProducerOptions | None = None) -> Producer:
        """Return a producer of a topic, which is created if it does not exist. Use it with `async with`."""
        return Producer(self.brokers, topic, options)

    def consumer(self, topic: str, subscription: str, options: ConsumerOptions | None = None) -> Consumer:
        """Return a consumer of a durable subscription, which is created if it does not exist. Use `async with`."""
        return Consumer(self.brokers, topic, subscription, options)

    def reader(self, topic: str, start: MessageId = EARLIEST, options: ConsumerOptions | None = None) -> Reader:
        """Return a reader that begins after a message. It changes no subscription. Use it with `async with`."""
        return Reader(self.brokers, topic, start, options)
