"""Operator and kubectl plugin read responses up to a limit; one byte more is an error that names it."""

import aiohttp
import pytest
from kubernetes.aio.client import ApiClient, Configuration

from quire_operator.builders.naming import CONTAINER
from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.cluster.bounded_body import BODY_BYTES_MAX
from quire_operator.cluster.broker_rest import BrokerEndpoint, BrokerRest
from quire_operator.errors import UnreachableError
from quire_operator.kubectl.access import Cluster
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


async def test_kubectl_quire_reads_a_pods_response_up_to_the_same_limit() -> None:
    pod = {
        "metadata": {"name": "pool-bookie-0", "namespace": "prod"},
        "spec": {"containers": [{"name": CONTAINER, "readinessProbe": {"httpGet": {"port": 8000}}}]},
    }
    for size, refused in ((BODY_BYTES_MAX, False), (BODY_BYTES_MAX + 1, True)):
        async with sized_answers(size) as port:
            cluster = Cluster(ApiClient(Configuration(host=f"http://{HOST}:{port}")))
            async with cluster:
                if refused:
                    with pytest.raises(UnreachableError, match=f"larger than {BODY_BYTES_MAX} bytes"):
                        await cluster.ask_pod(pod, "/state")
                else:
                    assert len((await cluster.ask_pod(pod, "/state")).body) == BODY_BYTES_MAX - 2
