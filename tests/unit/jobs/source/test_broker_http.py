"""Requests of jobs to brokers. What their responses mean for an offload: `offload.test_broker_admin`."""

import pytest

from quire_jobs.errors import QuireJobError
from quire_jobs.source import broker_http
from quire_jobs.source.broker_http import BrokerHttp
from tests.support.sized_answers import sized_answers

LIMIT = 100_000
"""Instead of the real limit, whose response takes a second to send."""


async def test_a_response_of_the_limit_is_read_and_one_byte_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_http, "HTTP_ANSWER_BYTES_MAX", LIMIT)
    async with sized_answers(LIMIT) as port, BrokerHttp(f"http://127.0.0.1:{port}") as http:
        status, text = await http.ask("GET", "/admin/v2/namespaces")
        assert (status, len(text)) == (200, LIMIT - 2)
    async with sized_answers(LIMIT + 1) as port, BrokerHttp(f"http://127.0.0.1:{port}") as http:
        with pytest.raises(QuireJobError, match=f"larger than {LIMIT} bytes"):
            await http.ask("GET", "/admin/v2/namespaces")
