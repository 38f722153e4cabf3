"""A client of the broker's frames on asyncio, for tests that look at single answers."""

import asyncio

from quire_broker.server.broker import RunningBroker
from quire_broker.wire.entry import seal
from quire_broker.wire.frames import FrameDecoder, MessageFrame, encode
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb

TOPIC = "persistent://public/default/owned"


class Wire:
    """One connection. Its one producer has the id 1 and the name `p`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.decoder = FrameDecoder(1_000_000)
        self.frames: list[pb.BaseCommand | MessageFrame] = []

    @classmethod
    async def open(cls, broker: RunningBroker) -> "Wire":
        """Connect to a broker without authentication."""
        wire = await cls.reach(broker.port)
        await wire.connect()
        return wire

    @classmethod
    async def reach(cls, port: int) -> "Wire":
        """Open a connection on which nothing was sent."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def connect(self, token: str | None = None) -> pb.BaseCommand:
        """Send CONNECT; the answer."""
        connect = pb.CommandConnect(client_version="t", protocol_version=20)
        if token is not None:
            connect.auth_method_name, connect.auth_data = "token", token.encode()
        return await self.answer(pb.BaseCommand(type=Kind.CONNECT, connect=connect))

    def send(self, command: pb.BaseCommand) -> None:
        """Without waiting for an answer."""
        self.writer.write(encode(command))

    def publish(self, sequence_id: int) -> None:
        """The message `m<sequence id>`, without waiting for its receipt."""
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
        entry = seal(metadata, b"m%d" % sequence_id)
        send = pb.CommandSend(producer_id=1, sequence_id=sequence_id)
        command = pb.BaseCommand(type=6, send=send).SerializeToString()
        head = (4 + len(command) + len(entry)).to_bytes(4, "big") + len(command).to_bytes(4, "big")
        self.writer.write(head + command + entry)

    async def next(self, timeout_s: float = 20.0) -> pb.BaseCommand | MessageFrame:
        """The next frame of the broker; EOFError. TimeoutError if it sends nothing for so long."""
        while not self.frames:
            data = await asyncio.wait_for(self.reader.read(65536), timeout_s)
            if not data:
                raise EOFError
            self.frames += self.decoder.feed(data)  # type: ignore[arg-type]
        return self.frames.pop(0)

    async def answer(self, command: pb.BaseCommand) -> pb.BaseCommand:
        """Send it; the next frame."""
        self.send(command)
        frame = await self.next()
        assert isinstance(frame, pb.BaseCommand)
        return frame

    async def lookup(self) -> pb.CommandLookupTopicResponse:
        """Of TOPIC."""
        request = pb.CommandLookupTopic(topic=TOPIC, request_id=1)
        return (await self.answer(pb.BaseCommand(type=23, lookup=request))).lookup_response

    async def produce(self) -> pb.BaseCommand:
        """Ask for a producer of TOPIC."""
        request = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=2, producer_name="p")
        return await self.answer(pb.BaseCommand(type=5, producer=request))


async def received(wire: Wire, count: int) -> list[int]:
    """The numbers of the next messages of a new subscription that begins at the first one."""
    subscribe = pb.CommandSubscribe(
        topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=3, initialPosition=1
    )
    assert (await wire.answer(pb.BaseCommand(type=4, subscribe=subscribe))).type == Kind.SUCCESS
    wire.send(pb.BaseCommand(type=11, flow=pb.CommandFlow(consumer_id=1, messagePermits=1000)))
    got = [await wire.next() for _ in range(count)]
    return [int(bytes(each.entry).rsplit(b"m", 1)[1]) for each in got if isinstance(each, MessageFrame)]


async def stored(wire: Wire, numbers: range) -> None:
    """Publish these and wait for their receipts."""
    for number in numbers:
        wire.publish(number)
    for _ in numbers:
        receipt = await wire.next()
        assert isinstance(receipt, pb.BaseCommand)
        assert receipt.type == Kind.SEND_RECEIPT, receipt


async def kind_of_next(wire: Wire) -> int:
    """Of a frame that is no message."""
    frame = await wire.next()
    assert isinstance(frame, pb.BaseCommand)
    return frame.type
