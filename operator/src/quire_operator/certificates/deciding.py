"""Decides when to create, renew or replace an authority or a certificate. Pure.

An authority is renewed in two steps, so that no peer receives a certificate of an authority that it does not trust
yet: after two thirds of its lifetime the next one is created and added to every `ca.crt`; it signs only `TRUST_FIRST_S`
later. The former one stays in `ca.crt` until it expires, long after the last certificate that it signed.
"""

from dataclasses import dataclass
from enum import Enum

from quire_operator.certificates.issuing import Facts, is_signed_by
from quire_operator.certificates.subjects import Subject

DAY_S = 86_400.0
AUTHORITY_LIFE_S = 3 * 365 * DAY_S
LIFE_S = 90 * DAY_S
RENEWED_AFTER = 2 / 3
"""Share of a lifetime after which the renewal is due."""
TRUST_FIRST_S = 7 * DAY_S
"""Time between adding an authority to `ca.crt` and its first certificate.

Secrets reach pods within minutes; a process that reads `ca.crt` only at its start (etcd) has a week for a restart.
"""
assert LIFE_S < AUTHORITY_LIFE_S * (1 - RENEWED_AFTER) - TRUST_FIRST_S


class Step(Enum):
    """The next step for an authority."""

    NOTHING = "nothing"
    MAKE = "make"
    """Create one: there is none, or none that can sign."""
    PREPARE = "prepare"
    """Create the next one, which is trusted but does not sign yet."""
    PROMOTE = "promote"
    """Let the next one sign from now on."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """Why a certificate is issued; for the log."""

    reason: str


def is_due(certificate: Facts, now_s: float) -> bool:
    """Return whether two thirds of its lifetime are over."""
    return now_s >= certificate.begins_s + RENEWED_AFTER * (certificate.ends_s - certificate.begins_s)


def authority_step(signing: Facts | None, following: Facts | None, now_s: float) -> Step:
    """Return the next step for an authority and its successor; None stands for a missing or invalid one."""
    if signing is None or now_s >= signing.ends_s:
        # Without a signing authority the next one must sign, even if not every peer trusts it yet.
        return Step.MAKE if following is None or now_s >= following.ends_s else Step.PROMOTE
    if following is not None:
        return Step.PROMOTE if now_s - following.begins_s >= TRUST_FIRST_S else Step.NOTHING
    return Step.PREPARE if is_due(signing, now_s) else Step.NOTHING


def renewal(found: Facts | None, wanted: Subject, authority: Facts, now_s: float) -> Renewal | None:
    """Return why a certificate must be issued; None if the existing one is sufficient."""
    if found is None:
        return Renewal("there is no valid one")
    if not is_signed_by(found, authority):
        return Renewal("it was signed by another authority")
    if is_due(found, now_s):
        return Renewal("two thirds of its lifetime are over" if now_s < found.ends_s else "it has expired")
    names = set(wanted.dns) | set(wanted.addresses)
    if missing := sorted(names - set(found.subject.dns) - set(found.subject.addresses)):
        return Renewal(f"it lacks the names {', '.join(missing)}")
    if (found.subject.unit, found.subject.server) != (wanted.unit, wanted.server):
        return Renewal("it has another role or purpose")
    return None


def trusted(bundle: list[Facts], signing: Facts, following: Facts | None, now_s: float) -> list[Facts]:
    """Return the content of `ca.crt`: the signing authority, the next one, and former ones until they expire."""
    first = [signing] + ([following] if following is not None else [])
    known = {each.signer for each in first}
    former = [each for each in bundle if each.authority and each.signer not in known and now_s < each.ends_s]
    return [*first, *former]
