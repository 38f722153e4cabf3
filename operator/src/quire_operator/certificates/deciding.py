"""What is to be done about an authority and about a certificate, from what they say and the time. Pure.

An authority is renewed in two steps, so that nobody ever meets a certificate of an authority that it does not trust
yet: at two thirds of its life the next one is made and put into every `ca.crt`; only `TRUST_FIRST_S` later it signs.
The former stays in `ca.crt` until it ends, long after the last certificate that it signed.
"""

from dataclasses import dataclass
from enum import Enum

from quire_operator.certificates.issuing import Facts, is_signed_by
from quire_operator.certificates.subjects import Subject

DAY_S = 86_400.0
AUTHORITY_LIFE_S = 3 * 365 * DAY_S
LIFE_S = 90 * DAY_S
RENEWED_AFTER = 2 / 3
"""Of a life."""
TRUST_FIRST_S = 7 * DAY_S
"""From an authority's first day in `ca.crt` to the first certificate of it: Secrets reach pods within minutes, and
whoever reads `ca.crt` only at a start (etcd) has a week for one."""
assert LIFE_S < AUTHORITY_LIFE_S * (1 - RENEWED_AFTER) - TRUST_FIRST_S


class Step(Enum):
    """What an authority needs."""

    NOTHING = "nothing"
    MAKE = "make"
    """There is none, or none that can sign any more."""
    PREPARE = "prepare"
    """Make the next one; it is trusted, and does not sign yet."""
    PROMOTE = "promote"
    """The next one signs from now on."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """Why a certificate is made; for the log."""

    reason: str


def is_due(certificate: Facts, now_s: float) -> bool:
    """Two thirds of its life are over."""
    return now_s >= certificate.begins_s + RENEWED_AFTER * (certificate.ends_s - certificate.begins_s)


def authority_step(signing: Facts | None, following: Facts | None, now_s: float) -> Step:
    """Of one authority and the next one, as they were read; None: there is none that can be used."""
    if signing is None or now_s >= signing.ends_s:
        # With nothing to sign with, the next one must do, whoever trusts it already.
        return Step.MAKE if following is None or now_s >= following.ends_s else Step.PROMOTE
    if following is not None:
        return Step.PROMOTE if now_s - following.begins_s >= TRUST_FIRST_S else Step.NOTHING
    return Step.PREPARE if is_due(signing, now_s) else Step.NOTHING


def renewal(found: Facts | None, wanted: Subject, authority: Facts, now_s: float) -> Renewal | None:
    """Why a certificate must be made; None: the one that was found will do."""
    if found is None:
        return Renewal("there is none that can be used")
    if not is_signed_by(found, authority):
        return Renewal("its authority is another")
    if is_due(found, now_s):
        return Renewal("two thirds of its life are over" if now_s < found.ends_s else "it has ended")
    names = set(wanted.dns) | set(wanted.addresses)
    if missing := sorted(names - set(found.subject.dns) - set(found.subject.addresses)):
        return Renewal(f"it does not name {', '.join(missing)}")
    if (found.subject.unit, found.subject.server) != (wanted.unit, wanted.server):
        return Renewal("it is for another use")
    return None


def trusted(bundle: list[Facts], signing: Facts, following: Facts | None, now_s: float) -> list[Facts]:
    """What belongs into `ca.crt`: who signs, who will, and former ones until they end."""
    first = [signing] + ([following] if following is not None else [])
    known = {each.signer for each in first}
    former = [each for each in bundle if each.authority and each.signer not in known and now_s < each.ends_s]
    return [*first, *former]
