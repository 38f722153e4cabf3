"""The addresses that etcd's members advertise to clients."""

from quire_bookie.metadata.etcd.members import ENDPOINTS_MAX, new_endpoints
from quire_bookie.metadata.etcd.proto import rpc_pb2 as rpc


def listed(*urls: list[str]) -> rpc.MemberListResponse:
    return rpc.MemberListResponse(members=[rpc.Member(ID=at, clientURLs=each) for at, each in enumerate(urls, 1)])


def test_addresses_that_are_not_known_are_returned_once_and_in_order() -> None:
    answer = listed(["http://a:2379"], ["http://b:2379", "http://b2:2379"], [], ["http://b:2379"])
    assert new_endpoints(["a:2379"], answer, tls=False) == ["b:2379", "b2:2379"]
    assert new_endpoints(["a:2379", "b:2379", "b2:2379"], answer, tls=False) == []


def test_addresses_of_another_scheme_and_invalid_ones_are_left_out() -> None:
    answer = listed(["https://a:2379", "http://b:2379"], ["unix://c", "http://", "http://[::1]:2379"])
    assert new_endpoints([], answer, tls=True) == ["a:2379"]
    assert new_endpoints([], answer, tls=False) == ["b:2379", "[::1]:2379"]


def test_their_number_is_bounded_and_known_ones_stay() -> None:
    answer = listed([f"http://m{number}:2379" for number in range(100)])
    assert len(new_endpoints(["a:2379"], answer, tls=False)) == ENDPOINTS_MAX - 1
    known = [f"k{number}:2379" for number in range(ENDPOINTS_MAX + 5)]
    assert new_endpoints(known, answer, tls=False) == []
