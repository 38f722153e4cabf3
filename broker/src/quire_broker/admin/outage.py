"""Answers admin requests soon while the metadata store does not respond.

An operation of the metadata store may take 30 s. A request that is not done after `ADMIN_PATIENCE_S` checks the store,
and is answered 503 if it does not respond. A read is cancelled. A change goes on until its own operations end, because
its outcome is not known anyway. The response tells the client.
"""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from quire_bookie.admin.answers import RefusedError
from quire_bookie.env.background import Background
from quire_bookie.errors import MetadataError
from quire_broker.admin.context import broker_of, metadata_answers
from quire_broker.admin.routes import READS
from quire_broker.limits import ADMIN_LEFT_RUNNING_MAX, ADMIN_PATIENCE_S

LEFT_RUNNING = web.AppKey("left running", Background)
"""Changes that go on after their response."""


class LeftRunningError(RefusedError):
    """The request was answered, and its change goes on."""


@web.middleware
async def answered_without_metadata(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Let the handler answer. RefusedError 503 if it waits for a metadata store that does not respond."""
    task = asyncio.ensure_future(handler(request))
    task.set_name(f"{request.method} {request.rel_url.raw_path}")
    try:
        while not (await asyncio.wait({task}, timeout=ADMIN_PATIENCE_S))[0]:
            if request.writer.output_size:  # the response has begun: a stream, or a WebSocket that lasts for days
                await asyncio.wait({task})
                break
            await _require_metadata(request, task)
    except LeftRunningError:
        raise
    except BaseException:
        task.cancel()
        raise
    return task.result()


async def _require_metadata(request: web.Request, task: "asyncio.Task[web.StreamResponse]") -> None:
    """Raise RefusedError if the store does not respond, unless the response has begun."""
    try:
        await metadata_answers(broker_of(request))
    except MetadataError as error:
        left = request.app[LEFT_RUNNING]
        if task.done() or request.writer.output_size:
            return
        if request.method in READS:
            raise RefusedError(503, f"metadata store: {error}; try again later") from error
        if len(left) < ADMIN_LEFT_RUNNING_MAX:
            left.adopt(task)
            text = f"metadata store: {error}; the change may still be made: look before you repeat it"
            raise LeftRunningError(503, text) from error
