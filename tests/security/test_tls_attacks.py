"""Attacks on the TLS ports of a real broker process: certificates, roles of CNs, old TLS, wrong ports, half ends."""

import asyncio
import datetime
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from quire_broker.wire.frames import encode
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import Wire
from tests.support.certificates import Authority, Pem
from tests.support.guarded import SECRET, token
from tests.support.ports import free_ports
from tests.support.standalone import StandaloneProcess

pytestmark = pytest.mark.xdist_group("TLS attacks")  # of one process
DAY = datetime.timedelta(days=1)
CONNECT = pb.CommandConnect(client_version="t", protocol_version=19)


class Signer:
    """An authority that signs any subject. `trust`: its certificate as a file."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(self._name, self._key, DAY).add_extension(x509.BasicConstraints(True, None), True)
        self.trust = str(folder / f"{name}.pem")
        Path(self.trust).write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        left: datetime.timedelta,
        *,
        issuer: x509.Name | None = None,
        age: datetime.timedelta = 2 * DAY,
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(tz=datetime.UTC)
        built = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer or self._name)
        built = built.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return built.not_valid_before(now - age).not_valid_after(now + left)

    def issue(
        self,
        subject: x509.Name,
        left: datetime.timedelta = DAY,
        *,
        self_signed: bool = False,
        age: datetime.timedelta = 2 * DAY,
    ) -> Pem:
        """Issue a certificate of this subject, as files."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._builder(subject, key, left, issuer=subject if self_signed else None, age=age)
        serial = x509.random_serial_number()
        certificate, private = self.folder / f"{serial}.pem", self.folder / f"{serial}.key"
        signed = made.sign(key if self_signed else self._key, hashes.SHA256())
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        private.write_bytes(key.private_bytes(*form))
        return Pem(str(certificate), str(private))


def named(*common_names: str, together: bool = False) -> x509.Name:
    """Return a subject of these CNs, without validation; `together`: in one part of the name."""
    parts = [
        x509.NameAttribute(NameOID.COMMON_NAME, name, _type=_ASN1Type.UTF8String, _validate=False)
        for name in common_names
    ]
    if together:
        return x509.Name([x509.RelativeDistinguishedName(parts)])
    return x509.Name(parts)


class TlsBroker(StandaloneProcess):
    """Takes tokens and certificates; the role `root` may do everything. `signer`: of the clients that it trusts."""

    signer: Signer
    own: Authority
    tls_port: int
    https_port: int

    def context(self, client: Pem | None = None, **options: Any) -> ssl.SSLContext:
        found = ssl.create_default_context(cafile=self.own.trust)
        if client is not None:
            found.load_cert_chain(client.certificate, client.key)
        for name, value in options.items():
            setattr(found, name, value)
        return found

    async def connect(self, context: ssl.SSLContext, method: str = "tls", data: bytes = b"") -> pb.BaseCommand:
        """Return the response to CONNECT over TLS. OSError or EOFError without one."""
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.tls_port, ssl=context))
        request = pb.CommandConnect(client_version="t", protocol_version=19, auth_method_name=method, auth_data=data)
        try:
            return await wire.answer(pb.BaseCommand(type=Kind.CONNECT, connect=request))
        finally:
            wire.writer.transport.abort()

    async def get(self, context: ssl.SSLContext, path: str, *headers: str) -> int:
        """Return the status of a request over HTTPS. OSError or EOFError without one."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.https_port, ssl=context)
        try:
            lines = (f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers, "", "")
            writer.write("\r\n".join(lines).encode())
            async with asyncio.timeout(30):
                return int((await reader.readline()).split()[1])
        except IndexError:
            raise EOFError from None
        finally:
            writer.transport.abort()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    folder: Path = tmp_path_factory.mktemp("tls")
    own, signer = Authority(folder), Signer(folder, "clients")
    pem, (port, https), key = own.issue("broker", "127.0.0.1"), free_ports(2), folder / "secret.key"
    key.write_bytes(SECRET)
    settings = {
        "brokerServicePortTls": port,
        "webServicePortTls": https,
        "tlsCertificateFilePath": pem.certificate,
        "tlsKeyFilePath": pem.key,
        "tlsTrustCertsFilePath": signer.trust,
        "tlsCertRefreshCheckDurationSec": 1,
        "authenticationEnabled": "true",
        "authenticationProviders": "token,tls",
        "tokenSecretKey": f"file://{key}",
        "authorizationEnabled": "true",
        "superUserRoles": "root",
    }
    found = TlsBroker(folder, settings=tuple(f"{name}={value}" for name, value in settings.items()))
    found.own, found.signer, found.tls_port, found.https_port = own, signer, port, https
    found.start()
    yield found
    found.close()


REFUSED = (ssl.SSLError, ConnectionError, EOFError)


async def test_a_trusted_certificate_is_its_cn(broker: TlsBroker) -> None:
    context = broker.context(broker.signer.issue(named("root")))
    assert (await broker.connect(context)).type == Kind.CONNECTED
    assert await broker.get(context, "/admin/v2/clusters") == 200
    stranger = broker.context(broker.signer.issue(named("stranger")))
    assert await broker.get(stranger, "/admin/v2/tenants") == 403


@pytest.mark.parametrize("kind", ["expired", "of another authority", "self-signed", "not valid yet"])
async def test_a_certificate_that_is_not_good_gets_no_connection(broker: TlsBroker, kind: str, tmp_path: Path) -> None:
    if kind == "of another authority":
        pem = Signer(tmp_path, "clients").issue(named("root"))  # the same name, another key
    elif kind == "expired":
        pem = broker.signer.issue(named("root"), -DAY)
    elif kind == "self-signed":
        pem = broker.signer.issue(named("root"), self_signed=True)
    else:
        pem = broker.signer.issue(named("root"), 2 * DAY, age=-DAY)
    context = broker.context(pem)
    with pytest.raises(REFUSED):
        await broker.connect(context)
    with pytest.raises(REFUSED):
        await broker.get(context, "/admin/v2/tenants")


@pytest.mark.parametrize(
    "subject",
    [
        x509.Name([]),
        named(""),
        named("root\0.example"),
        named("root\n"),
        named("\x1b[31mroot"),
        named("*"),
        named("root "),
        named("ROOT"),
        named("r\u043e\u043et"),  # Cyrillic
        named("root\u200b"),
        named("root", "stranger"),
        named("stranger", "root"),
        named("stranger", "root", together=True),
        named("r" * 65536),
    ],
    ids=lambda subject: ascii(subject.rfc4514_string())[:40],
)
async def test_an_odd_cn_is_no_other_role(broker: TlsBroker, subject: x509.Name) -> None:
    context = broker.context(broker.signer.issue(subject))
    try:
        answer = await broker.connect(context)
        status = await broker.get(context, "/admin/v2/tenants")
    except REFUSED:
        assert not subject.rdns or subject.rfc4514_string() == "CN=", "only what OpenSSL itself refuses"
        return
    assert answer.type in (Kind.ERROR, Kind.CONNECTED)
    assert status in (401, 403)
    assert "r" * 300 not in broker.log.read_text(), "the name must not fill the log"


@pytest.mark.parametrize("common_names", [("stranger", "root"), ("root\0.example",), ("root\n",), ("r" * 300,)])
async def test_a_certificate_without_one_plain_cn_has_no_role(broker: TlsBroker, common_names: tuple[str, ...]) -> None:
    answer = await broker.connect(broker.context(broker.signer.issue(named(*common_names))))
    assert answer.type == Kind.ERROR
    assert "one CN" in answer.error.message


async def test_a_bad_token_is_not_made_good_by_a_certificate(broker: TlsBroker) -> None:
    context = broker.context(broker.signer.issue(named("root")))
    for method, data in (("token", b"x.y.z"), ("token", token("root").encode()[:-2]), ("", b""), ("none", b"root")):
        assert (await broker.connect(context, method, data)).type == Kind.ERROR
    for header in ("Bearer x.y.z", "Basic cm9vdDpyb290", "Bearer"):
        assert await broker.get(context, "/admin/v2/tenants", f"Authorization: {header}") == 401
    other = token("stranger")
    assert (await broker.connect(context, "token", other.encode())).type == Kind.CONNECTED
    assert await broker.get(context, "/admin/v2/tenants", f"Authorization: Bearer {other}") == 403, "the token's role"


async def test_the_role_of_a_connection_stays(broker: TlsBroker) -> None:
    context = broker.context(broker.signer.issue(named("stranger")))
    wire = Wire(*await asyncio.open_connection("127.0.0.1", broker.tls_port, ssl=context))
    request = pb.CommandConnect(client_version="t", protocol_version=19, auth_method_name="tls")
    assert (await wire.answer(pb.BaseCommand(type=Kind.CONNECT, connect=request))).type == Kind.CONNECTED
    response = pb.CommandAuthResponse(client_version="t")
    response.response.auth_method_name, response.response.auth_data = "token", token("root").encode()
    wire.send(pb.BaseCommand(type=Kind.AUTH_RESPONSE, auth_response=response))
    produce = pb.CommandProducer(topic="persistent://public/default/a", producer_id=1, request_id=1)
    answer = await wire.answer(pb.BaseCommand(type=Kind.PRODUCER, producer=produce))
    assert answer.type == Kind.ERROR, "a token that was not asked for changes nothing"
    request.auth_method_name, request.auth_data = "token", token("root").encode()
    assert (await wire.answer(pb.BaseCommand(type=Kind.CONNECT, connect=request))).type == Kind.ERROR
    with pytest.raises(EOFError):
        await wire.next()


def s_client(port: int, *options: str, lines: str = "") -> str:
    """Return the output of OpenSSL's own client."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", *options]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("-tls1", "-cipher", "ALL:@SECLEVEL=0"),
        ("-tls1_1", "-cipher", "ALL:@SECLEVEL=0"),
        ("-tls1_2", "-cipher", "aNULL:eNULL:@SECLEVEL=0"),
        ("-tls1_2", "-cipher", "kRSA:@SECLEVEL=0"),
        ("-tls1_2", "-cipher", "3DES:RC4:IDEA:SEED:CAMELLIA:MD5:PSK:SRP:@SECLEVEL=0"),
    ],
    ids=["TLS 1.0", "TLS 1.1", "no authentication or encryption", "no forward secrecy", "weak"],
)
async def test_old_versions_and_weak_ciphers_are_refused(broker: TlsBroker, options: tuple[str, ...]) -> None:
    for port in (broker.tls_port, broker.https_port):
        said = await asyncio.to_thread(s_client, port, *options, lines="Q\n")
        assert "Cipher is (NONE)" in said or "no ciphers available" in said or "no cipher match" in said, said


async def test_a_client_cannot_renegotiate(broker: TlsBroker) -> None:
    for port in (broker.tls_port, broker.https_port):
        said = await asyncio.to_thread(s_client, port, "-tls1_2", lines="R\n")
        assert "RENEGOTIATING" in said
        assert "no renegotiation" in said, said


async def test_the_wrong_kind_of_port_ends_the_connection(broker: TlsBroker) -> None:
    hello = encode(pb.BaseCommand(type=Kind.CONNECT, connect=CONNECT))
    request = b"GET /admin/v2/tenants HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for port in (broker.tls_port, broker.https_port):
        for sent in (hello, request, b"\x16\x03\x01\xff\xff" + bytes(70_000)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            async with asyncio.timeout(30):
                try:
                    assert (await reader.read())[:1] in (b"", b"\x15"), "at most an alert"
                except ConnectionResetError:
                    continue
                finally:
                    writer.transport.abort()
    context = broker.context()
    with pytest.raises(REFUSED):
        await asyncio.wait_for(asyncio.open_connection("127.0.0.1", int(broker.url.rsplit(":", 1)[1]), ssl=context), 30)


async def test_a_connection_is_closed_after_the_client_closes_its_half(broker: TlsBroker) -> None:
    context = broker.context(broker.signer.issue(named("root")))
    for _ in range(2):  # the second one is answered at once: the name of the first is free
        wire = Wire(*await asyncio.open_connection("127.0.0.1", broker.tls_port, ssl=context))
        request = pb.CommandConnect(client_version="t", protocol_version=19, auth_method_name="tls")
        await wire.answer(pb.BaseCommand(type=Kind.CONNECT, connect=request))
        await wire.lookup()
        assert (await wire.produce()).type == Kind.PRODUCER_SUCCESS
        wire.writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
        with pytest.raises((EOFError, *REFUSED)):
            await wire.next()
