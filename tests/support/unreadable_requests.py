"""Requests that contain a token and are not valid HTTP, and checks of their responses and of the log."""

import asyncio
import logging

import pytest

SECRET = "s3cr3t-of-a-token"
HEAD = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
REQUESTS = {
    "long header": (431, HEAD + b"Authorization: Bearer " + SECRET.encode() * 600 + b"\r\n\r\n"),
    "long header name": (431, HEAD + SECRET.encode() * 600 + b": 1\r\n\r\n"),
    "long path": (431, b"GET /" + SECRET.encode() * 600 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "control character": (400, HEAD + b"Authorization: Bearer " + SECRET.encode() + b"\x00\r\n\r\n"),
    "invalid length": (400, HEAD + b"Content-Length: " + SECRET.encode() + b"\r\n\r\n"),
    "no request line": (400, b"Bearer " + SECRET.encode() + b"\r\n\r\n"),
    "invalid path": (400, b"GET http://[" + SECRET.encode() + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"),
}
"""The expected status and the bytes of each kind of request."""


async def sent(port: int, request: bytes) -> str:
    """Send a request and return the response until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def check_refusals(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """Check that each request is refused, and logged in one line without its content."""
    with caplog.at_level(logging.DEBUG):
        for what, (status, request) in REQUESTS.items():
            caplog.clear()
            answer = await sent(port, request)
            assert answer.split(" ")[1] == str(status), what
            assert SECRET not in answer, what
            assert "reason" in answer or "request" in answer, what
            lines = [record for record in caplog.records if not record.name.startswith("asyncio")]
            assert len(lines) == 1, what
            assert lines[0].exc_info is None and "127.0.0.1 is refused" in lines[0].getMessage(), what
            assert SECRET not in caplog.text, what
