"""The addresses of etcd's members for clients, as they advertise them. Pure.

A member that replaced another may have a new address. Without these addresses a client that knows only the former ones
cannot reach the cluster once the last of them is gone.
"""

from collections.abc import Iterable
from typing import Final

from quire_bookie.errors import ConfigError
from quire_bookie.metadata.etcd.proto import rpc_pb2 as rpc
from quire_bookie.metadata.url import EtcdLocation, parse_metadata_url

ENDPOINTS_MAX: Final = 32
"""Addresses that a client keeps; those of members that left are kept too."""


def new_endpoints(known: Iterable[str], answer: rpc.MemberListResponse, *, tls: bool) -> list[str]:
    """Return the advertised addresses that are not `known`, in the order of the answer, up to `ENDPOINTS_MAX` in all.

    A member that has not started yet advertises none. Addresses with another scheme, and invalid ones, are left out.
    """
    found = dict.fromkeys(known)
    before = len(found)
    for member in answer.members:
        for url in member.clientURLs:
            try:
                location = parse_metadata_url(f"etcd:{url}")
            except ConfigError:
                continue
            if isinstance(location, EtcdLocation) and location.tls == tls:
                found |= dict.fromkeys(location.endpoints)
    return list(found)[before : max(before, ENDPOINTS_MAX)]
