"""Tests of the gate: the bytes of responses before authentication, for each generation and operation."""

import pytest

from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import EntryId
from quire_bookie.server.security.auth import Admitted, AuthExchange, Challenge, Peer, Refused, Step
from quire_bookie.server.security.gate import Gate, Verdict
from quire_bookie.wire import client_codec, client_v3
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.messages import AddResponse, AuthResponse, ReadResponse, Request, Status
from quire_bookie.wire.proto import bookkeeper_pb2 as pb
from quire_bookie.wire.server_codec import ServerCodec
from tests.unit.bookie.server.security.served import LEDGER, start_tls, v2_add, v2_read

PLUGIN = "riddle"
PEER = Peer("192.0.2.1")


class Riddle:
    """Sends one challenge and expects its solution; over TLS, admits clients with a certificate and refuses others."""

    plugin = PLUGIN

    def begin(self, peer: Peer) -> AuthExchange:
        """Return a new exchange."""
        return RiddleExchange()


class RiddleExchange:
    """Authenticates one client."""

    def __init__(self) -> None:
        self._asked = False

    def process(self, payload: bytes) -> Step:
        """Send the challenge, then check the solution."""
        if not self._asked:
            self._asked = True
            return Challenge(b"what walks on four legs?")
        return Admitted("oedipus", b"pass") if payload == b"man" else Refused("wrong answer")

    def is_withdrawn(self) -> bool:
        """Return False."""
        return False

    def secured(self, peer: Peer) -> Step | None:
        """Admit a client with a certificate."""
        return Refused("no certificate") if peer.subject is None else Admitted(dict(peer.subject)["commonName"])


def gate(*, tls_required: bool = False) -> Gate:
    """Return a closed gate."""
    return Gate(Riddle(), PEER, tls_required=tls_required)


def requests(*frames: bytes) -> list[Request]:
    """Decode frames."""
    codec = ServerCodec()
    found = codec.feed(b"".join(frames))
    assert codec.failure is None
    return found


def only(frame: bytes) -> Request:
    """Return the one request of a frame."""
    (request,) = requests(frame)
    return request


def v3_answers(verdict: Verdict) -> list[pb.Response]:
    """Decode the responses."""
    found, rest = [], verdict.answer
    while rest:
        size = int.from_bytes(rest[:4], "big")
        found.append(pb.Response.FromString(rest[4 : 4 + size]))
        rest = rest[4 + size :]
    return found


V3_REQUESTS = {
    "add": client_v3.add(9, LEDGER, EntryId(0), bytes(20), bytes(40)),
    "short add": client_v3.add(9, LEDGER, EntryId(0), bytes(20), bytes(20)),
    "malformed add": client_v3.add(9, LEDGER, EntryId(0), bytes(20), b""),
    "read": client_v3.read(9, LEDGER, EntryId(0)),
    "fencing read": client_v3.read(9, LEDGER, EntryId(-1), fence_with=bytes(20)),
    "write lac": client_v3.write_lac(9, LEDGER, EntryId(0), bytes(20), bytes(20)),
    "read lac": client_v3.read_lac(9, LEDGER),
    "force": client_v3.force(9, LEDGER),
    "info": client_v3.bookie_info(9, 3),
    "list": client_v3.list_entries(9, LEDGER),
}


@pytest.mark.parametrize("name", V3_REQUESTS)
def test_a_v3_request_is_unauthorized_without_a_body(name: str) -> None:
    shut = gate()
    verdict = shut.answer(only(V3_REQUESTS[name]))
    (answer,) = v3_answers(verdict)
    assert (answer.status, answer.header.txnId, answer.header.version) == (pb.EUA, 9, pb.VERSION_THREE)
    assert answer.header.operation == pb.Request.FromString(V3_REQUESTS[name][4:]).header.operation
    assert [field.name for field, _ in answer.ListFields()] == ["header", "status"]
    assert not verdict.close
    assert not shut.is_open


def test_each_add_of_a_v3_run_gets_its_response() -> None:
    entries = [LEDGER.to_bytes(8, "big") + entry.to_bytes(8, "big") + bytes(24) for entry in range(3)]
    frames = [client_v3.add(40 + at, LEDGER, EntryId(at), bytes(20), data) for at, data in enumerate(entries)]
    (run,) = requests(*frames)
    answers = v3_answers(gate().answer(run))
    assert [answer.header.txnId for answer in answers] == [40, 41, 42]
    assert {answer.status for answer in answers} == {pb.EUA}


def test_the_bytes_of_a_v3_refusal() -> None:
    refused = gate().answer(only(V3_REQUESTS["read"]))
    assert refused.answer.hex() == "0000000b" + "0a0608031001" + "1809" + "10f603"


def test_a_v2_add_or_read_is_unauthorized_and_any_other_packet_closes() -> None:
    answer = gate().answer(only(v2_add()))
    assert ClientCodec(2).feed(answer.answer) == [AddResponse(Status.UNAUTHORIZED, LEDGER, EntryId(0))]
    assert answer.answer.hex() == "00000018" + "02010000" + "00000066" + "0000000000000007" + "0000000000000000"
    answer = gate().answer(only(v2_read()))
    assert ClientCodec(2).feed(answer.answer) == [ReadResponse(Status.UNAUTHORIZED, LEDGER, EntryId(0))]
    batch = client_codec.v2_batch_read(LEDGER, EntryId(0), 1, 1, 1)
    assert gate().answer(only(batch)) == Verdict(close=True)


def test_a_v2_request_of_an_unknown_version_is_unauthorized_too() -> None:
    for frame in (v2_add(), v2_read()):
        odd = frame[:4] + b"\x03" + frame[5:]
        answer = gate().answer(only(odd)).answer
        assert (answer[4], answer[8:12]) == (3, (102).to_bytes(4, "big"))
    batch = client_codec.v2_batch_read(LEDGER, EntryId(0), 1, 1, 1)
    assert gate().answer(only(batch[:4] + b"\x03" + batch[5:])) == Verdict(close=True)


@pytest.mark.parametrize("generation", [2, 3])
def test_an_exchange_continues_until_the_provider_admits_the_client(generation: int) -> None:
    shut = gate()

    def send(payload: bytes) -> Verdict:
        frame = client_codec.v2_auth(PLUGIN, payload) if generation == 2 else client_v3.auth(3, PLUGIN, payload)
        return shut.answer(only(frame))

    def payload(verdict: Verdict) -> bytes:
        (answer,) = ClientCodec(generation).feed(verdict.answer)
        assert isinstance(answer, AuthResponse) and answer.status is Status.OK and answer.plugin == PLUGIN
        return answer.payload

    assert payload(send(b"")) == b"what walks on four legs?"
    assert not shut.is_open
    assert payload(send(b"man")) == b"pass"
    assert shut.is_open
    assert shut.role == "oedipus"


@pytest.mark.parametrize("generation", [2, 3])
def test_a_failed_exchange_closes_without_sending_a_reason(generation: int) -> None:
    shut = gate()
    frame = client_codec.v2_auth(PLUGIN, b"x") if generation == 2 else client_v3.auth(3, PLUGIN, b"x")
    shut.answer(only(frame))
    verdict = shut.answer(only(frame))
    assert verdict.close
    assert verdict.refused == "wrong answer"
    assert b"wrong" not in verdict.answer
    if generation == 2:
        assert verdict.answer == b""
    else:
        (answer,) = v3_answers(verdict)
        assert answer.status == pb.EUA
        assert not answer.HasField("authResponse")


def test_another_plugin_closes_over_v2_and_is_unauthorized_over_v3() -> None:
    verdict = gate().answer(only(client_codec.v2_auth("sasl", b"x")))
    assert (verdict.answer, verdict.close) == (b"", True)
    verdict = gate().answer(only(client_v3.auth(3, "sasl", b"x")))
    assert [answer.status for answer in v3_answers(verdict)] == [pb.EUA]
    assert not verdict.close
    assert verdict.refused


def test_an_auth_request_without_its_message_is_unauthorized() -> None:
    request = pb.Request(header=pb.PacketHeader(version=pb.VERSION_THREE, operation=pb.AUTH, txnId=3))
    body = request.SerializeToString()
    verdict = gate().answer(only(len(body).to_bytes(4, "big") + body))
    assert [answer.status for answer in v3_answers(verdict)] == [pb.EUA]


def test_start_tls_without_tls_is_a_bad_request_before_authentication_too() -> None:
    assert [answer.status for answer in v3_answers(gate().answer(only(start_tls())))] == [pb.EBADREQ]


def test_a_certificate_may_suffice() -> None:
    shut = gate()
    assert shut.secured(Peer("192.0.2.1", True, [("commonName", "sphinx")])) is None
    assert (shut.is_open, shut.role) == (True, "sphinx")
    shut = gate()
    assert isinstance(shut.secured(Peer("192.0.2.1", True)), Refused)
    assert not shut.is_open


def test_a_client_that_authenticated_in_plaintext_keeps_its_role_over_tls() -> None:
    shut = gate()
    for payload in (b"", b"man"):
        shut.answer(only(client_v3.auth(3, PLUGIN, payload)))
    assert shut.secured(Peer("192.0.2.1", True)) is None
    assert shut.role == "oedipus"


def test_required_tls_comes_before_authentication() -> None:
    shut = gate(tls_required=True)
    for _ in range(3):
        verdict = shut.answer(only(client_v3.auth(3, PLUGIN, b"man")))
        assert [answer.status for answer in v3_answers(verdict)] == [pb.EUA]
    assert shut.answer(only(client_codec.v2_auth(PLUGIN, b"man"))) == Verdict(close=True)
    shut.secured(Peer("192.0.2.1", True))
    assert not shut.is_open
    for payload in (b"", b"man"):
        shut.answer(only(client_v3.auth(3, PLUGIN, payload)))
    assert shut.is_open


def test_required_tls_alone_opens_with_tls() -> None:
    shut = Gate(None, PEER, tls_required=True)
    assert not shut.is_open
    assert shut.secured(Peer("192.0.2.1", True)) is None
    assert shut.is_open


def test_small_frames_can_be_required_before_and_large_ones_allowed_after() -> None:
    codec = ServerCodec(1000)
    codec.allow_frames(100)
    assert len(codec.feed(v2_add(bytes(30)))) == 1
    codec.allow_frames(1000)
    frame = v2_add(bytes(500))
    assert codec.feed(frame[:50]) == []
    assert len(codec.feed(frame[50:])) == 1
    codec.allow_frames(100)
    assert codec.feed(frame[:50]) == []
    assert isinstance(codec.failure, PeerProtocolError)
