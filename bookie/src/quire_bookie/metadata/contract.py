"""Checks and computations that all implementations of the metadata store port share. Pure.

A wrong key or transaction is a bug of ours and fails an `assert`; a value that is too large is an error, because users
influence its size with names and properties.
"""

from collections.abc import Sequence

from quire_bookie.errors import MetadataError
from quire_bookie.limits import METADATA_TRANSACTION_OPERATIONS_MAX, METADATA_VALUE_BYTES_MAX
from quire_bookie.metadata.store import Check, Operation, Put, Read


def is_key(key: str) -> bool:
    """Return whether a key is a path: it starts with `/` and does not end with one."""
    return key.startswith("/") and not key.endswith("/")


def check_key(key: str) -> None:
    """Check that a key is a path."""
    assert is_key(key), key


def check_value(key: str, value: bytes) -> None:
    """Raise MetadataError if the value is larger than every store must accept."""
    if len(value) > METADATA_VALUE_BYTES_MAX:
        raise MetadataError(f"{key}: a value of {len(value)} bytes; the limit is {METADATA_VALUE_BYTES_MAX}")


def check_transaction(checks: Sequence[Check], operations: Sequence[Operation], reads: Sequence[Read] = ()) -> None:
    """Check keys, sizes and the number of operations; no key is written twice (etcd refuses that)."""
    count = len(checks) + len(operations) + len(reads)
    assert count <= METADATA_TRANSACTION_OPERATIONS_MAX, "split the transaction"
    assert len({operation.key for operation in operations}) == len(operations), "a key is written twice"
    for check in checks:
        check_key(check.key)
    for operation in operations:
        check_key(operation.key)
        if isinstance(operation, Put):
            check_value(operation.key, operation.value)


def sequence_parent(prefix: str) -> str:
    """Return the node whose version is the counter of the sequential nodes that start with `prefix`."""
    parent = prefix.rpartition("/")[0]
    check_key(parent)
    return parent


def prefix_end(prefix: bytes) -> bytes:
    """Return the smallest key above all keys that start with `prefix` (not empty)."""
    trimmed = prefix.rstrip(b"\xff")
    assert trimmed, "no key is above every key"
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


def after_child(base: bytes, key: bytes) -> bytes:
    """Return the key at which to continue a listing of the children of `base` (which ends with `/`) after `key`.

    Skips everything below the same child; if `key` is the child itself, skips only that key, since `a-b` sorts between
    `a` and `a/b`.
    """
    name, slash, _ = key[len(base) :].partition(b"/")
    return base + name + (b"0" if slash else b"\0")  # "0" is the character that follows "/"
