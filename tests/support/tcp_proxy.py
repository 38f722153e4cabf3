"""A proxy in front of a server, to take the network away from one client: cut, refused, or silent."""

import asyncio
import contextlib


class TcpProxy:
    """Forwards until told otherwise. `cut` closes and refuses; `mute_answers` swallows what the server sends."""

    def __init__(self, port: int, target_port: int) -> None:
        self.port = port
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.mute_answers = False

    async def open(self) -> None:
        """Listen; also again after `cut`."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    async def cut(self) -> None:
        """Close every connection and take no more."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        for source, target, answers in ((reader, back, False), (there, writer, True)):
            task = asyncio.ensure_future(self._forward(source, target, answers))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if not (answers and self.mute_answers):
                    target.write(data)
                    await target.drain()
        self._writers.discard(target)
        target.transport.abort()
