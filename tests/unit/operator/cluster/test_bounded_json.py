"""The operator reads responses of bookies and brokers up to a limit; one byte more is an error that names it."""

import aiohttp
import pytest

from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.cluster.bounded_json import BODY_BYTES_MAX
from quire_operator.cluster.broker_rest import BrokerEndpoint, BrokerRest
from quire_operator.errors import UnreachableError
from tests.support.sized_answers import HOST, sized_answers


@pytest.mark.parametrize("announced", [True, False])
async def test_a_response_of_a_bookie_is_read_up_to_the_limit(announced: bool) -> None:
    async with aiohttp.ClientSession() as session:
        async with sized_answers(BODY_BYTES_MAX, announced=announced) as port:
            found = await BookieHttp(session, port).ask(HOST, "/state")
            assert len(found.body) == BODY_BYTES_MAX - 2
        async with sized_answers(BODY_BYTES_MAX + 1, announced=announced) as port:
            with pytest.raises(UnreachableError, match=f"larger than {BODY_BYTES_MAX} bytes"):
                await BookieHttp(session, port).ask(HOST, "/state")


async def test_a_response_of_a_broker_has_the_same_limit() -> None:
    async with aiohttp.ClientSession() as session, sized_answers(BODY_BYTES_MAX + 1) as port:
        with pytest.raises(UnreachableError, match=f"larger than {BODY_BYTES_MAX} bytes"):
            await BrokerRest(session, port).namespace(BrokerEndpoint(HOST), "public/default")
