"""Requests to the HTTP port that a bookie registered. Their effects on a bookie: `admin.test_recovery_api`."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from quire_bookie.errors import BookieUnavailableError
from quire_bookie.metadata.layout import writable_path
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.metadata.service_info import BookieServiceInfo, encode_service_info, http_endpoint
from quire_bookie.model import BookieId, LedgerId
from quire_bookie.recovery.bookie_http import BookieHttp
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.support.sized_answers import HOST, sized_answers

B = BookieId("b-1")
LIMIT = 100_000
"""Instead of HTTP_ANSWER_BYTES_MAX, which takes a second to send."""


@asynccontextmanager
async def http_to(port: int, *, tls: bool = False) -> AsyncIterator[BookieHttp]:
    """Yield a client of the bookie B, which registered this HTTP port."""
    server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
    for path in ("/ledgers/available", "/ledgers/available/readonly"):
        server.write(path, b"", None)
    info = BookieServiceInfo((http_endpoint(HOST, port, tls=tls),))
    server.write(writable_path(B), encode_service_info(info), 99)
    registry = await BookieRegistry.open(SimMetadataStore(server))
    http = BookieHttp(registry, answer_bytes_max=LIMIT)
    yield http
    await http.close()
    await registry.close()


@pytest.mark.parametrize("announced", [True, False])
async def test_a_response_of_the_limit_is_read_and_one_byte_more_is_refused(announced: bool) -> None:
    async with sized_answers(LIMIT, announced=announced) as port, http_to(port) as http:
        assert len(await http.get(B, "/holdings", "report")) == LIMIT - 2
    async with sized_answers(LIMIT + 1, announced=announced) as port, http_to(port) as http:
        with pytest.raises(BookieUnavailableError, match=rf"did not report: .* larger than {LIMIT} by"):
            await http.get(B, "/holdings", "report")
        with pytest.raises(BookieUnavailableError, match=r"did not end limbo: .* larger than"):
            await http.end_limbo(B, LedgerId(1))


async def test_a_port_with_tls_is_not_contacted_without_trusted_certificates() -> None:
    async with sized_answers(2) as port, http_to(port, tls=True) as http:
        with pytest.raises(BookieUnavailableError, match="did not become read-only: it requires TLS"):
            await http.set_read_only(B, True)
