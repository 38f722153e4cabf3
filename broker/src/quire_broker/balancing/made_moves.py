"""Keeps how many moves were ordered within a minute, so that the limit of moves survives a change of leader.

    /loadbalance/moves   {"moves": n}

A leader writes it before it orders the moves of a round. It has no time, because the clocks of machines differ: the
next leader counts all of them as made when its term began.
"""

from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.store import MetadataStore
from quire_broker.balancing.load_report import number_of
from quire_broker.policies.store import decode_json, encode_json

MOVES = "/loadbalance/moves"


async def made_before(metadata: MetadataStore, count_max: int) -> int:
    """Return how many moves earlier leaders made, at most `count_max`; that if the record is damaged. MetadataError."""
    node = await metadata.get(MOVES)
    if node is None:
        return 0
    try:
        return int(min(max(0.0, number_of(decode_json(MOVES, node.value), "moves")), count_max))
    except MetadataFormatError:
        return count_max


async def record(metadata: MetadataStore, count: int) -> None:
    """Write how many moves this leader knows of within the last minute, with those it orders next. MetadataError."""
    await metadata.put(MOVES, encode_json({"moves": count}))
