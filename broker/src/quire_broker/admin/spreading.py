"""Serves one admin request for all partitions of a topic, or all bundles of a namespace, each at its owner.

Some parts may fail while others are done. The error then names them, so that the client can repeat the request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from aiohttp import web

from quire_bookie.admin.answers import RefusedError
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import QuireError
from quire_broker.admin.answers import code_of
from quire_broker.admin.context import (
    AUTHORITATIVE,
    MISDIRECTED,
    SETTLE_PAUSE_S,
    base_of,
    broker_of,
    misdirected,
    require_owner,
    settled,
    topic_name_of,
)
from quire_broker.admin.forwarding import FORWARDING, Call, is_forwarded
from quire_broker.errors import ServiceNotReadyError
from quire_broker.limits import FORWARDS_PER_REQUEST_MAX, OWNER_SETTLES_S, SPREAD_S
from quire_broker.names import TopicName
from quire_broker.ownership.owners import Bundle, Owner

_SHOWN_FAILURES = 5
MISSING = 404
CONFLICT = 409
UNAVAILABLE = 503


@dataclass(frozen=True, slots=True)
class Part:
    """One partition or bundle. `find`: its owner, None: nothing to do; `work`: done here; `call`: sent to its owner."""

    name: str
    find: Callable[[], Awaitable[Owner | None]]
    work: Callable[[], Awaitable[Any]]
    call: Call


def topic_path(name: TopicName) -> str:
    """Return the encoded path of a topic."""
    return f"/admin/v2/{name.domain}/{name.namespace}/{quote(name.local, safe='')}"


async def at_owners(
    request: web.Request,
    work: Callable[[TopicName], Awaitable[Any]],
    *,
    fine: Collection[int] = (),
) -> dict[TopicName, Any]:
    """Do the work for the topic of the path, or for each partition of a partitioned one, at its owner.

    Returns the JSON of each. The other brokers get the same request for one partition. Partitions that fail with a
    status in `fine` are omitted. If all do, the first error is raised.
    """
    name = topic_name_of(request)
    count = await broker_of(request).policies.partitions(name, fresh=True)
    if not count:
        await require_owner(request, name)
        return {name: await work(name)}
    found, omitted = await on_topics(request, name.partitions(count), work, fine=fine)
    if not found:
        raise next(iter(omitted.values()))
    return found


async def on_topics(
    request: web.Request,
    names: Sequence[TopicName],
    work: Callable[[TopicName], Awaitable[Any]],
    *,
    method: str = "",
    suffix: str | None = None,
    query: Mapping[str, str] | None = None,
    fine: Collection[int] = (),
) -> tuple[dict[TopicName, Any], dict[str, QuireError]]:
    """Do the work for each topic at its owner; see `at_owners`. Returns the results, and the errors in `fine`.

    Other brokers get method, query and body of the request, and what follows the topic in its path, unless they are
    given here. With a `query` they get no body.
    """
    lookups = broker_of(request).parts.lookups
    method, asked, body = await _sent(request, method, query)
    end = _suffix_of(request) if suffix is None else suffix

    def part(name: TopicName) -> Part:
        call = Call(method, f"{topic_path(name)}{end}{asked}", body)
        return Part(str(name), lambda: lookups.find(name), lambda: work(name), call)

    found, omitted = await _spread(request, [part(name) for name in names], "partitions", fine)
    return {name: found[str(name)] for name in names if str(name) in found}, omitted


async def on_bundles(
    request: web.Request,
    bundles: Sequence[Bundle],
    work: Callable[[Bundle], Awaitable[Any]],
    *,
    method: str = "",
    suffix: str,
    query: Mapping[str, str] | None = None,
    root: str = "/admin/v2/namespaces",
    take: bool = False,
) -> dict[Bundle, Any]:
    """Do the work for each bundle at its owner; see `on_topics`. With `take`, a bundle without one gets one first."""
    broker = broker_of(request)
    find = broker.parts.lookups.find_bundle if take else partial(broker.owners.owner_of, take=False)
    method, asked, body = await _sent(request, method, query)

    def part(bundle: Bundle) -> Part:
        call = Call(method, f"{root}/{bundle}{suffix}{asked}", body)
        return Part(str(bundle), partial(find, bundle), partial(work, bundle), call)

    parts = {bundle: part(bundle) for bundle in bundles}
    found, _ = await _spread(request, list(parts.values()), "bundles", ())
    return {bundle: found[one.name] for bundle, one in parts.items() if one.name in found}


async def _sent(request: web.Request, method: str, query: Mapping[str, str] | None) -> tuple[str, str, bytes]:
    """Return method, query with its question mark, and body of the requests to other brokers; see `on_topics`."""
    body = await request.read() if query is None else b""
    if query is None:
        query = {key: value for key, value in request.query.items() if key != AUTHORITATIVE}
    return method or request.method, f"?{urlencode(query)}" if query else "", body


def _suffix_of(request: web.Request) -> str:
    """Return what follows the topic in the path of the request, encoded as the client sent it."""
    resource = request.match_info.route.resource
    assert resource is not None, "a request that reached its handler has a route"
    before = resource.canonical.split("/").index("{topic}")
    return "".join(f"/{segment}" for segment in request.rel_url.raw_path.split("/")[before + 1 :])


async def _spread(
    request: web.Request, parts: Sequence[Part], kind: str, fine: Collection[int]
) -> tuple[dict[str, Any], dict[str, QuireError]]:
    gate = asyncio.Semaphore(FORWARDS_PER_REQUEST_MAX)
    until_s = asyncio.get_running_loop().time() + SPREAD_S
    found: dict[str, Any] = {}
    omitted: dict[str, QuireError] = {}
    failures: dict[str, QuireError] = {}

    async def serve(part: Part) -> None:
        bound = asyncio.timeout_at(until_s)
        try:
            async with bound, gate:
                done, value = await _serve(request, part)
            if done:
                found[part.name] = value
        except TimeoutError as error:
            text = f"not done in {SPREAD_S:.0f} s" if bound.expired() else f"its work timed out: {error!r}"
            failures[part.name] = ServiceNotReadyError(text)
        except QuireError as error:
            (omitted if code_of(error) in fine else failures)[part.name] = error

    try:
        async with asyncio.TaskGroup() as group:  # an error that is not expected ends the other parts, too
            for part in parts:
                group.create_task(serve(part))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    if failures:
        raise _joined(failures, len(parts), kind)
    return found, omitted


async def _serve(request: web.Request, part: Part) -> tuple[bool, Any]:
    """Return whether the part has an owner, and its result there.

    Tries again for some seconds while the part changes hands, or its owner is gone and another broker takes it: the
    requests that are spread may be repeated.
    """
    until_s = asyncio.get_running_loop().time() + OWNER_SETTLES_S
    while True:
        try:
            return await _serve_once(request, part)
        except QuireError as error:
            changing = code_of(error) in (UNAVAILABLE, MISDIRECTED)
            if not changing or is_forwarded(request) or asyncio.get_running_loop().time() >= until_s:
                raise
            await asyncio.sleep(SETTLE_PAUSE_S)


async def _serve_once(request: web.Request, part: Part) -> tuple[bool, Any]:
    owner = await settled(part.find)
    if owner is None:
        return False, None
    if owner.ours:
        return True, await part.work()
    base = base_of(request, owner, part.name)
    if is_forwarded(request):
        raise misdirected(part.name, base)
    return True, (await request.app[FORWARDING].send(request, base, part.call)).result()


def _joined(failures: dict[str, QuireError], count: int, kind: str) -> RefusedError:
    """Return one error for all failures, with their common status, or 500."""
    codes = {code_of(error) for error in failures.values()}
    shown = [f"{name}: {error}" for name, error in sorted(failures.items())[:_SHOWN_FAILURES]]
    if len(failures) > len(shown):
        shown.append(f"{len(failures) - len(shown)} more")
    rest = "" if len(failures) == count else "; the others are done"
    return RefusedError(
        codes.pop() if len(codes) == 1 else 500, f"{len(failures)} of {count} {kind} failed{rest}: {'; '.join(shown)}"
    )
