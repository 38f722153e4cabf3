"""Registration values: BookKeeper's bytes, all fields, invalid values, and the legacy form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.service_info import (
    MACHINE,
    BookieServiceInfo,
    Endpoint,
    bookie_endpoint,
    decode_service_info,
    encode_service_info,
    http_endpoint,
)
from quire_bookie.model import BookieId
from tests.support.golden_etcd import history

STOCK = {
    change.key: change.value for change in history() if change.key.startswith("/ledgers/available/") and change.value
}
texts = st.text(max_size=10)
endpoints = st.builds(
    Endpoint,
    texts,
    texts,
    st.integers(0, 65535),
    texts,
    st.lists(texts, max_size=2).map(tuple),
    st.lists(texts, max_size=2).map(tuple),
)
infos = st.builds(
    BookieServiceInfo,
    st.lists(endpoints, min_size=1, max_size=3).map(tuple),
    st.dictionaries(texts, texts, max_size=3),
)


@pytest.mark.parametrize(("key", "value"), sorted(STOCK.items()))
def test_a_stock_registration_is_what_we_write_for_that_address(key: str, value: bytes) -> None:
    host, port = key.rpartition("/")[2].split(":")
    assert encode_service_info(BookieServiceInfo((bookie_endpoint(host, int(port)),))) == value
    endpoint = decode_service_info(value, BookieId("b")).bookie_endpoint
    assert endpoint is not None
    assert (endpoint.endpoint_id, endpoint.host, endpoint.port, endpoint.protocol) == (
        "bookie",
        host,
        int(port),
        "bookie-rpc",
    )


@given(infos)
def test_every_registration_survives_its_encoding(info: BookieServiceInfo) -> None:
    assert decode_service_info(encode_service_info(info), BookieId("b")) == info


def test_the_bookie_endpoint_is_found_among_others() -> None:
    info = BookieServiceInfo((http_endpoint("h", 8000), bookie_endpoint("h", 3181, tls=True)))
    assert info.bookie_endpoint == Endpoint("bookie", "h", 3181, "bookie-rpc", (), ("tls",))
    assert BookieServiceInfo((http_endpoint("h", 8000),)).bookie_endpoint is None


def test_an_empty_value_means_that_the_id_is_the_address() -> None:
    endpoint = decode_service_info(b"", BookieId("host.example:3181")).bookie_endpoint
    assert endpoint is not None and (endpoint.host, endpoint.port) == ("host.example", 3181)
    for bookie in ("name-0011aabb", "host:", ":3181", "host:x", "host:70000"):
        with pytest.raises(MetadataFormatError):
            decode_service_info(b"", BookieId(bookie))


@pytest.mark.parametrize(
    "value", [b"\xff", b'2"\n', encode_service_info(BookieServiceInfo((bookie_endpoint("h", 70000),)))]
)
def test_invalid_values_are_refused_with_our_own_error(value: bytes) -> None:
    with pytest.raises(MetadataFormatError):
        decode_service_info(value, BookieId("b"))


@pytest.mark.parametrize(
    ("info", "machine"),
    [
        (BookieServiceInfo((bookie_endpoint("Host.Example", 3181),)), "host.example"),
        (BookieServiceInfo((bookie_endpoint("h", 3181),), {MACHINE: "node-7"}), "node-7"),
        (BookieServiceInfo((bookie_endpoint("h", 3181),), {MACHINE: ""}), "h"),
        (BookieServiceInfo((http_endpoint("h", 8000),)), ""),
    ],
    ids=["address", "published", "empty", "no address"],
)
def test_the_machine_is_the_published_one_or_the_host_of_the_address(info: BookieServiceInfo, machine: str) -> None:
    assert decode_service_info(encode_service_info(info), BookieId("b")).machine == machine
