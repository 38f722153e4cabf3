"""What the tests of the steps over whole buffers share: both makers of a step, and one V2 add."""

import importlib
from types import ModuleType

import pytest

from quire_bookie.wire import v2

KEY = bytes(range(20))


def native(*steps: str) -> ModuleType | None:
    """The native module, where it is built and has these steps."""
    try:
        found = importlib.import_module("quire_bookie.bulk._native")
    except ImportError:
        return None
    return found if all(hasattr(found, step) for step in steps) else None


def both(plain: ModuleType, *steps: str) -> pytest.MarkDecorator:
    """Run a test with `steps` the plain ones and the native ones."""
    built = native(*steps)
    unbuilt = pytest.mark.skipif(built is None, reason="not built: `make native`")
    return pytest.mark.parametrize(
        "steps", [pytest.param(plain, id="plain"), pytest.param(built, id="native", marks=unbuilt)]
    )


def add_frame(ledger: int, entry: int, lac: int, payload: bytes, *, key: bytes = KEY, flags: int = 0) -> bytes:
    """One V2 add."""
    body = b"".join(number.to_bytes(8, "big", signed=True) for number in (ledger, entry, lac, 0)) + payload
    head = v2.header_word(v2.ADD, flags).to_bytes(4, "big") + key
    return (len(head) + len(body)).to_bytes(4, "big") + head + body
