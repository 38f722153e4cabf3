"""/admin/quire/topics/T/subscription/S/peek: the next entries of a subscription, without delivering them.

GET .../peek?count=n   {"entries": [{"ledgerId", "entryId", "ackSet": [words], "entry": base64}], "backlog": entries}

An entry is sent as it is stored: the client unpacks batches and decompresses, never the broker. A partitioned topic
has none itself: ask for each partition.
"""

import base64
from collections.abc import Iterator

from aiohttp import web

from quire_bookie.admin.answers import whole_number
from quire_broker.admin.answers import answer
from quire_broker.admin.context import owned_topic, subscription_of
from quire_broker.admin.descriptions import INTEGER, OBJECT, Query, described
from quire_broker.admin.routes import Need, Route
from quire_broker.limits import PEEK_BYTES_MAX, PEEK_ENTRIES_MAX


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    topic = "/admin/quire/topics/{domain:persistent}/{tenant}/{namespace}/{topic}"
    yield Route("GET", topic + "/subscription/{subscription}/peek", peek, Need.CONSUME)


@described(Query("count", INTEGER, "most entries"), returns=OBJECT)
async def peek(request: web.Request) -> web.Response:
    """Return the first unacknowledged entries, up to the requested count and bytes."""
    count = whole_number("count", request.query.get("count", "1"), 1, PEEK_ENTRIES_MAX)
    topic = await owned_topic(request)
    subscription = subscription_of(request, topic)
    entries = await subscription.peek(count, PEEK_BYTES_MAX)
    shown = [
        {
            "ledgerId": entry.position.ledger_id,
            "entryId": entry.position.entry_id,
            "ackSet": list(subscription.cursor.ack_set(entry.position) or ()),
            "entry": base64.b64encode(entry.data).decode(),
        }
        for entry in entries
    ]
    return answer({"entries": shown, "backlog": subscription.cursor.backlog})
