"""A collector: receives OTLP over HTTP and decodes it with the protocol's own library."""

import gzip
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.certificates import Pem

PATH = "/v1/traces"


@dataclass
class Received:
    """One span with what surrounds it."""

    service: str
    scope: str
    span: Span

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def trace(self) -> bytes:
        return self.span.trace_id

    @property
    def attributes(self) -> dict[str, Any]:
        return {
            each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value")
            for each in self.span.attributes
        }


@dataclass
class OtlpReceiver:
    """The spans received so far, and the headers of the last request."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    """Answers to the next requests, whose spans are not taken; then all are."""
    retry_after: str = ""
    requests: int = 0
    connections: int = 0
    end_connections: Callable[[], None] = lambda: None

    def named(self, name: str) -> list[Received]:
        return [each for each in list(self.spans) if each.name == name]

    def of_trace(self, trace: bytes) -> list[Received]:
        return [each for each in list(self.spans) if each.trace == trace]

    def received(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            of_resource = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [Received(of_resource["service.name"], scope.scope.name, span) for span in scope.spans]


@contextmanager
def otlp_receiver(port: int = 0, certificate: Pem | None = None) -> Iterator[OtlpReceiver]:
    """Serve on a port of this machine, with TLS if there is a certificate."""
    receiver = OtlpReceiver()
    open_sockets: list[socket.socket] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            open_sockets.append(self.connection)
            receiver.connections += 1

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.requests += 1
            receiver.headers = dict(self.headers.items())
            status = 404 if self.path != PATH else receiver.statuses.pop(0) if receiver.statuses else 200
            if status == 200:
                receiver.received(body)
            self.send_response(status)
            if receiver.retry_after:
                self.send_header("Retry-After", receiver.retry_after)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Write nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Write nothing: clients end connections."""

    def end_connections() -> None:
        while open_sockets:
            with suppress(OSError):
                open_sockets.pop().shutdown(socket.SHUT_RDWR)

    receiver.end_connections = end_connections
    server = Server(("127.0.0.1", port), Handler)
    scheme, host = "http", "127.0.0.1"
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate.certificate, certificate.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme, host = "https", "localhost"
    receiver.url = f"{scheme}://{host}:{server.server_address[1]}{PATH}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        end_connections()
        server.server_close()
        thread.join()
