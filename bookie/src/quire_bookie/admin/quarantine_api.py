"""`/api/v1/bookie/gc/quarantine` and `gc/undelete`: lists and restores ledgers that are missing from the metadata.

    GET /api/v1/bookie/gc/quarantine?after=&limit=
        {"ledgers": [{"ledger", "state": "quarantined" or "undeleted", "since", "until", "entries", "bytes", "reason"}],
         "next", "doubt", "quarantineSeconds"}
    PUT /api/v1/bookie/gc/undelete
        {"ledgers": [1, 2]} or {"all": true} or {"since": ms}, and "forSeconds": 3600 unless it lasts until the
        metadata names the ledger  ->  {"undeleted": their number, "ledgers": the first of them}

Times are milliseconds since the epoch. `since`: when the ledger entered this state. `until`: when the state ends if the
bookie runs until then and garbage collection has no doubt; null: when the metadata names the ledger. `next`: for
`after`, or null. `doubt`: why the last round of garbage collection did not trust the metadata, or null. Entries and
bytes are those flushed when the ledger entered quarantine. `/api/v1/bookie/quarantine` is a different list, of entry
logs.
"""

from collections.abc import Callable
from typing import Any

from aiohttp import web

from quire_bookie.admin.answers import RefusedError, integer, json_object, truth
from quire_bookie.admin.routes import Need, Route
from quire_bookie.env.clock import WallClock
from quire_bookie.limits import GC_QUARANTINE_PAGE_LEDGERS_MAX, UNDELETE_FOR_S_MAX, UNDELETE_LEDGERS_MAX
from quire_bookie.metadata import layout
from quire_bookie.model import LedgerId
from quire_bookie.server.process import RunningBookie
from quire_bookie.storage.ledger_quarantine import QuarantinedLedger

_ROOT = "/api/v1/bookie/gc"


class QuarantineApi:
    """Handles the requests. `bookie` raises HTTP 503 while the bookie starts."""

    def __init__(self, bookie: Callable[[], RunningBookie], clock: WallClock) -> None:
        self._bookie = bookie
        self._clock = clock

    def routes(self) -> list[Route]:
        """Return the routes with their permissions."""
        return [
            Route("GET", f"{_ROOT}/quarantine", self._list, Need.READ),
            Route("PUT", f"{_ROOT}/undelete", self._undelete, Need.CHANGE),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        """Return the ledgers in quarantine."""
        after = integer(request, "after", -1)
        limit = max(1, min(integer(request, "limit", GC_QUARANTINE_PAGE_LEDGERS_MAX), GC_QUARANTINE_PAGE_LEDGERS_MAX))
        bookie = self._bookie()
        found = [one for one in await bookie.storage.ledger_quarantine.all() if one.ledger > after]
        rules = bookie.settings.garbage_collection.quarantine
        return web.json_response(
            {
                "ledgers": [self._describe(bookie, one) for one in found[:limit]],
                "next": found[limit - 1].ledger if len(found) > limit else None,
                "doubt": bookie.garbage_collection.doubt,
                "quarantineSeconds": rules.keep_s,
            }
        )

    def _describe(self, bookie: RunningBookie, one: QuarantinedLedger) -> dict[str, Any]:
        lasts_ms = one.lasts_ms if one.is_undeleted else bookie.settings.garbage_collection.quarantine.keep_ms
        left_ms = max(0, lasts_ms - bookie.storage.ledger_quarantine.age_ms(one))
        return {
            "ledger": one.ledger,
            "state": one.state.name.lower(),
            "since": one.since_ms,
            "until": None if one.is_undeleted and not one.lasts_ms else self._clock.now_ms() + left_ms,
            "entries": one.entries,
            "bytes": one.size_bytes,
            "reason": one.reason,
        }

    async def _undelete(self, request: web.Request) -> web.Response:
        """Restore ledgers from quarantine."""
        body = await json_object(request)
        quarantine = self._bookie().storage.ledger_quarantine
        lasts_ms = _lasts_ms(body)
        ways = [key for key in ("ledgers", "all", "since") if body.get(key) is not None]
        if len(ways) != 1:
            raise RefusedError(400, 'the body needs one of "ledgers": [1, 2], "all": true and "since": milliseconds')
        if ways == ["ledgers"]:
            ledgers = _ledgers(body["ledgers"])
        else:
            if ways == ["all"] and not truth(body, "all"):
                raise RefusedError(400, '"all" can only be true; give "ledgers" or "since" instead')
            since_ms = 0 if ways == ["all"] else _number(body, "since")
            known = [one for one in await quarantine.all() if not one.is_undeleted]
            ledgers = [one.ledger for one in known if one.since_ms >= since_ms]
        done = await quarantine.undelete(ledgers, lasts_ms)
        return web.json_response(
            {"undeleted": len(done), "ledgers": [one.ledger for one in done[:GC_QUARANTINE_PAGE_LEDGERS_MAX]]}
        )


def _ledgers(value: Any) -> list[LedgerId]:
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < layout.LEDGER_IDS_END for one in value):
        raise RefusedError(400, '"ledgers" must be a list of ledger ids, for example [1, 2]')
    if len(value) > UNDELETE_LEDGERS_MAX:
        raise RefusedError(400, f'"ledgers" contains {len(value)} ids; give at most {UNDELETE_LEDGERS_MAX}')
    return sorted({LedgerId(one) for one in value})


def _lasts_ms(body: dict[str, Any]) -> int:
    """Return the duration; 0: until the metadata names the ledger."""
    if body.get("forSeconds") is None:
        return 0
    seconds = _number(body, "forSeconds")
    if not 0 < seconds <= UNDELETE_FOR_S_MAX:
        raise RefusedError(400, f'"forSeconds" is {seconds}; give more than 0 and at most {UNDELETE_FOR_S_MAX}')
    return max(1, int(seconds * 1000))


def _number(body: dict[str, Any], key: str) -> float:
    value = body.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 53:
        raise RefusedError(400, f'"{key}" must be a number of at least 0')
    return value
