"""Defines the paths of the nodes under `/ledgers`, as Pulsar's metadata store uses them on etcd. Pure; owns no values.

/ledgers/INSTANCEID                         identity of the cluster
/ledgers/cookies/<bookie>                   cookie
/ledgers/available/<bookie>                 registration of a writable bookie (ephemeral)
/ledgers/available/readonly/<bookie>        registration of a read-only bookie (ephemeral)
/ledgers/idgen, /ledgers/idgen-long/HOB-N   counters of ledger ids
/ledgers/DD/DDDD/LDDDD                      ledger below 2**31 - 1: ten digits, split 2-4-4
/ledgers/DDD/DDDD/DDDD/DDDD/LDDDD           larger ids: nineteen digits, split 3-4-4-4-4
"""

import re

from quire_bookie.model import BookieId, LedgerId

ROOT = "/ledgers"
INSTANCE_ID = f"{ROOT}/INSTANCEID"
COOKIES = f"{ROOT}/cookies"
AVAILABLE = f"{ROOT}/available"
READ_ONLY = f"{AVAILABLE}/readonly"
ID_COUNTER = f"{ROOT}/idgen"
LONG_ID_COUNTERS = f"{ROOT}/idgen-long"

SHORT_LEDGER_IDS_END = 2**31 - 1
"""The first id written with nineteen digits."""

LEDGER_IDS_END = 2**63
_SHORT = re.compile(r"/ledgers/([0-9]{2})/([0-9]{4})/L([0-9]{4})")
_LONG = re.compile(r"/ledgers/([0-9]{3})/([0-9]{4})/([0-9]{4})/([0-9]{4})/L([0-9]{4})")


def ledger_path(ledger: LedgerId) -> str:
    """Return the path of the ledger's metadata."""
    assert 0 <= ledger < LEDGER_IDS_END
    if ledger < SHORT_LEDGER_IDS_END:
        digits = f"{ledger:010d}"
        return f"{ROOT}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger:019d}"
    return f"{ROOT}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def ledger_of_path(path: str) -> LedgerId | None:
    """Return the ledger whose metadata is at `path`; None for every other path, however similar."""
    match = _SHORT.fullmatch(path) or _LONG.fullmatch(path)
    if match is None:
        return None
    number = int("".join(match.groups()))
    if number >= LEDGER_IDS_END or ledger_path(LedgerId(number)) != path:
        return None
    return LedgerId(number)


def cookie_path(bookie: BookieId) -> str:
    """Return the path of the bookie's cookie."""
    return f"{COOKIES}/{bookie}"


def writable_path(bookie: BookieId) -> str:
    """Return the path of the registration of a writable bookie."""
    return f"{AVAILABLE}/{bookie}"


def read_only_path(bookie: BookieId) -> str:
    """Return the path of the registration of a read-only bookie."""
    return f"{READ_ONLY}/{bookie}"
