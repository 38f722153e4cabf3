"""Parses a peer's protobuf bytes. Missing required fields and unknown enum values are errors, as on the JVM."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import Buffer

M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: Buffer) -> M:
    """Parse a complete message. PeerProtocolError."""
    message = kind()
    try:
        message.ParseFromString(data)  # type: ignore[arg-type]  # the stubs allow bytes only; any buffer is accepted
    except DecodeError as error:
        raise PeerProtocolError(f"not a {kind.__name__}: {error}") from error
    if not message.IsInitialized():
        raise PeerProtocolError(f"{kind.__name__} lacks a required field")
    return message
