"""Tests reads of stored bytes: a reader returns no entry whose digest does not match."""

import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.client.reading.range_read import RangeReader
from quire_bookie.model import DigestType, EntryId
from quire_bookie.settings.client import ClientSettings
from tests.unit.bookie.client.cluster import Cluster, run


@pytest.mark.parametrize("digest", list(DigestType))
@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)])
def test_stored_entries_are_returned_as_far_as_one_replica_has_valid_ones(
    digest: DigestType, quorums: tuple[int, int, int]
) -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        size, write_quorum, ack_quorum = quorums
        writer = await client.create_ledger(
            ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum, digest_type=digest
        )
        payloads = [b"entry %d" % entry for entry in range(12)]
        writer.submit(payloads)
        await writer.close()
        ledgers = [cluster.bookies[bookie].ledgers for bookie in writer.metadata.segments[0].ensemble]
        stored = [ledger[writer.ledger_id].entries for ledger in ledgers]
        first, last = EntryId(0), EntryId(11)
        good = dict(stored[0])
        for position, entry in ((0, 3), (1, 4), (2, 4), (0, 9), (1, 9), (2, 9)):
            if entry in stored[position]:
                at = 0 if digest is DigestType.DUMMY else -1  # this type protects only the ids
                spoiled = bytearray(stored[position][entry])
                spoiled[at] ^= 1
                stored[position][entry] = bytes(spoiled)
        reader = RangeReader(writer._handle.read_way, ClientSettings())
        if size != write_quorum:
            assert await reader.read_stored(writer.metadata, first, last, 10**6) is None
            return
        found: dict[int, bytes] = {}
        while (at_entry := len(found)) < 9:
            run = await reader.read_stored(writer.metadata, EntryId(at_entry), last, 10**6)
            assert run is not None and run.first == at_entry and run.end == at_entry + len(run.entries)
            assert run.payload_bytes == sum(map(len, payloads[at_entry : run.end]))
            found |= {entry: bytes(one) for entry, one in enumerate(run.entries, run.first)}
        assert found == {entry: good[entry] for entry in range(9)}
        assert await reader.read_stored(writer.metadata, EntryId(9), last, 10**6) is None
        after = await reader.read_stored(writer.metadata, EntryId(10), last, 0)
        assert after is not None and [*after.entries] == [good[10]]

    run(scenario)
