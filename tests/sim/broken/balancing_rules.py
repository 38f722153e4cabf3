"""Broken variants: rules of brokers that share bundles and requests, each removed."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from aiohttp import web

from quire_bookie.errors import QuireError
from quire_bookie.metadata.election import Election
from quire_broker.admin import context, spreading
from quire_broker.admin.answers import code_of
from quire_broker.balancing.leader import Leader
from quire_broker.balancing.plan import shedding
from quire_broker.ownership.owners import Bundle
from quire_broker.server.handover import Handover
from quire_broker.topic.topic import Topic
from tests.sim.broken.variant import Variant, replaced


def _two_leaders() -> tuple[Any, ...]:
    async def trusted(self: Election) -> bool:
        return True

    async def forever(self: Leader) -> None:
        await asyncio.Event().wait()

    return (replaced(Election, "still_leads", trusted), replaced(Leader, "_until_lost", forever))


def _forwarded_again() -> tuple[Any, ...]:
    def broken(request: web.Request) -> bool:
        return False

    return (replaced(spreading, "is_forwarded", broken), replaced(context, "is_forwarded", broken))


def _failed_parts_count_as_done() -> tuple[Any, ...]:
    proper = spreading._serve

    async def broken(request: web.Request, part: spreading.Part) -> tuple[bool, Any]:
        try:
            return await proper(request, part)
        except QuireError as error:
            if code_of(error) in (spreading.MISSING, spreading.CONFLICT):
                raise
            return False, None

    return (replaced(spreading, "_serve", broken),)


def _old_reports_trusted() -> tuple[Any, ...]:
    def broken(*_: object) -> bool:
        return False

    return (replaced(shedding, "_is_old", broken),)


def _handed_over_without_close() -> tuple[Any, ...]:
    async def broken(
        self: Handover, bundle: Bundle, topics: list[Topic], closed: list[Topic], closing: Coroutine[None, None, None]
    ) -> None:
        closing.close()
        closed += topics

    return (replaced(Handover, "_close_in_time", broken),)


BALANCING_RULES = (
    Variant("two leaders: a leader trusts its lease without a look", "brokers", 7, _two_leaders),
    Variant("stale report: an old load report is trusted", "brokers", 0, _old_reports_trusted),
    Variant("handover without close", "brokers", 0, _handed_over_without_close),
    Variant("a forwarded request is forwarded again", "forwarding", 2, _forwarded_again),
    Variant("partitions that failed count as done", "forwarding", 0, _failed_parts_count_as_done),
)
