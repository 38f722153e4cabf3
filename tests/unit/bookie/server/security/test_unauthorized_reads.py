"""Tests that reads of one run are refused one by one."""

from quire_bookie.model import EntryId, LedgerId
from quire_bookie.server.security.gate import unauthorized
from quire_bookie.wire import client_codec
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.messages import ReadResponse, Status
from quire_bookie.wire.server_codec import ServerCodec


def test_every_read_of_a_run_gets_a_refusal() -> None:
    (run,) = ServerCodec(batches=True).feed(
        b"".join(client_codec.v2_read(LedgerId(7), EntryId(entry)) for entry in range(3))
    )
    verdict = unauthorized(run)
    answers = ClientCodec(2).feed(verdict.answer)
    assert answers == [ReadResponse(Status.UNAUTHORIZED, LedgerId(7), EntryId(entry)) for entry in range(3)]
    assert not verdict.close
