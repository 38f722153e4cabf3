"""/admin/v2/bookies: the bookies of the cluster and their racks, at Pulsar's paths.

GET    .../all                    {"bookies": [{"bookieId": "host:port"}]}, every bookie that has a cookie
GET    .../racks-info             {group: {bookie: {"rack", "hostname"}}}
GET    .../racks-info/{bookie}    {"rack", "hostname"}; 404 for a bookie without a rack
POST   .../racks-info/{bookie}?group=   moves the bookie to a rack and a group
DELETE .../racks-info/{bookie}

Brokers and bookies follow the rack map: the next ensemble that is chosen uses it.
"""

from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web

from quire_bookie.metadata.cookies import Cookies
from quire_bookie.metadata.rack_map import RACK_MAP, change_rack_map, rack_groups, with_entry, without_entry
from quire_bookie.model import BookieId
from quire_broker.admin.answers import answer, done, object_of
from quire_broker.admin.context import broker_of
from quire_broker.admin.descriptions import OBJECT, TEXT, Query, described, fields
from quire_broker.admin.routes import Need, Route
from quire_broker.errors import NotAllowedError, NotFoundError
from quire_broker.limits import NAME_CHARACTERS_MAX, RACKED_BOOKIES_MAX


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    root = "/admin/v2/bookies"
    yield Route("GET", f"{root}/all", all_bookies, Need.SUPER_USER)
    yield Route("GET", f"{root}/racks-info", racks, Need.SUPER_USER)
    yield Route("GET", f"{root}/racks-info/{{bookie}}", rack, Need.SUPER_USER)
    yield Route("POST", f"{root}/racks-info/{{bookie}}", set_rack, Need.SUPER_USER)
    yield Route("DELETE", f"{root}/racks-info/{{bookie}}", remove_rack, Need.SUPER_USER)


@described(returns=OBJECT)
async def all_bookies(request: web.Request) -> web.Response:
    """Return every bookie that was ever started and not removed."""
    found = await Cookies(broker_of(request).metadata).bookies()
    return answer({"bookies": [{"bookieId": bookie} for bookie in sorted(found)]})


async def _groups(request: web.Request) -> dict[str, dict[str, Any]]:
    node = await broker_of(request).metadata.get(RACK_MAP)
    return {} if node is None else rack_groups(node.value)


@described(returns=OBJECT)
async def racks(request: web.Request) -> web.Response:
    """Return the racks of all bookies by group."""
    return answer(await _groups(request))


@described(returns=OBJECT)
async def rack(request: web.Request) -> web.Response:
    """Return the rack of one bookie."""
    bookie = _bookie_of(request)
    for members in (await _groups(request)).values():
        if bookie in members:
            return answer(members[bookie])
    raise NotFoundError(f"Bookie address not found: {bookie}")


@described(Query("group", TEXT, "group of the bookie"), body=fields(("rack",), rack=TEXT, hostname=TEXT))
async def set_rack(request: web.Request) -> web.Response:
    """Store rack and group of a bookie, which need not exist yet."""
    bookie, group, info = _bookie_of(request), request.query.get("group", ""), await object_of(request)
    if not 0 < len(group) <= NAME_CHARACTERS_MAX:
        raise NotAllowedError(f"the query needs group=, a name of 1 to {NAME_CHARACTERS_MAX} characters")
    rack, host = info.get("rack"), info.get("hostname")
    if not isinstance(rack, str) or not 0 < len(rack.strip("/")) <= NAME_CHARACTERS_MAX:
        raise NotAllowedError(f"rack is {str(rack)[:100]!r}; give a path such as /zone/rack")
    if host is not None and (not isinstance(host, str) or len(host) > NAME_CHARACTERS_MAX):
        raise NotAllowedError(
            f"hostname is {str(host)[:100]!r}; give a text of at most {NAME_CHARACTERS_MAX} characters"
        )

    def change(value: bytes) -> bytes:
        changed = with_entry(value, group, bookie, rack, host)
        count = sum(map(len, rack_groups(changed).values()))
        if count > RACKED_BOOKIES_MAX:
            raise NotAllowedError(f"{RACKED_BOOKIES_MAX} bookies have a rack; remove one that is gone first")
        return changed

    await _change(request, change)
    return done()


async def remove_rack(request: web.Request) -> web.Response:
    """Remove the rack of a bookie; 404 if it has none."""
    bookie = _bookie_of(request)

    def change(value: bytes) -> bytes:
        if not any(bookie in members for members in rack_groups(value).values()):
            raise NotFoundError(f"Bookie address not found: {bookie}")
        return without_entry(value, bookie)

    await _change(request, change)
    return done()


async def _change(request: web.Request, change: Callable[[bytes], bytes]) -> None:
    broker = broker_of(request)
    await change_rack_map(broker.metadata, broker.chance, change)


def _bookie_of(request: web.Request) -> BookieId:
    bookie = request.match_info["bookie"]
    if len(bookie) > NAME_CHARACTERS_MAX:
        raise NotAllowedError(f"the id of a bookie has {len(bookie)} characters; the limit is {NAME_CHARACTERS_MAX}")
    return BookieId(bookie)
