"""When authorities and certificates are renewed, as tables."""

import pytest

from quire_operator.certificates import issuing
from quire_operator.certificates.deciding import (
    AUTHORITY_LIFE_S,
    DAY_S,
    LIFE_S,
    TRUST_FIRST_S,
    Step,
    authority_step,
    is_due,
    renewal,
    trusted,
)
from quire_operator.certificates.issuing import Facts, Pair
from quire_operator.certificates.subjects import Subject

NOW_S = 1_800_000_000.0
POOL = Subject("pool-bookie", "bookie", ("pool-bookie", "*.pool-bookie.prod.svc"), ("127.0.0.1",))


def authority(now_s: float = NOW_S) -> Pair:
    return issuing.new_authority("quire prod", now_s, AUTHORITY_LIFE_S)


def authority_facts(now_s: float = NOW_S) -> Facts:
    return issuing.read(authority(now_s))


SIGNING, NEXT = authority_facts(), authority_facts(NOW_S + AUTHORITY_LIFE_S * 2 / 3)
DUE_S = NOW_S + AUTHORITY_LIFE_S * 2 / 3


@pytest.mark.parametrize(
    ("signing", "following", "at_s", "step"),
    [
        (None, None, NOW_S, Step.MAKE),
        (SIGNING, None, NOW_S, Step.NOTHING),
        (SIGNING, None, DUE_S - 1, Step.NOTHING),
        (SIGNING, None, DUE_S, Step.PREPARE),
        (SIGNING, NEXT, DUE_S, Step.NOTHING),
        (SIGNING, NEXT, DUE_S + TRUST_FIRST_S - 1, Step.NOTHING),
        (SIGNING, NEXT, DUE_S + TRUST_FIRST_S, Step.PROMOTE),
        (SIGNING, None, NOW_S + AUTHORITY_LIFE_S, Step.MAKE),
        (SIGNING, NEXT, NOW_S + AUTHORITY_LIFE_S, Step.PROMOTE),
        (None, NEXT, DUE_S, Step.PROMOTE),
        (None, NEXT, DUE_S + AUTHORITY_LIFE_S, Step.MAKE),
    ],
)
def test_the_next_authority_is_created_at_two_thirds_and_signs_a_week_later(
    signing: Facts | None, following: Facts | None, at_s: float, step: Step
) -> None:
    assert authority_step(signing, following, at_s) is step


def test_a_certificate_is_due_at_two_thirds_of_its_lifetime() -> None:
    pair = authority()
    found = issuing.read(issuing.issue(POOL, pair, NOW_S, LIFE_S))
    assert LIFE_S == 90 * DAY_S
    assert not is_due(found, NOW_S + 60 * DAY_S - 1)
    assert is_due(found, NOW_S + 60 * DAY_S)


@pytest.mark.parametrize(
    ("wanted", "later_s", "reason"),
    [
        (POOL, 0.0, None),
        (POOL, 60 * DAY_S - 1, None),
        (POOL, 60 * DAY_S, "two thirds of its lifetime are over"),
        (POOL, 90 * DAY_S, "it has expired"),
        (Subject("pool-bookie", "bookie", ("pool-bookie",)), 0.0, None),
        (
            Subject("pool-bookie", "bookie", (*POOL.dns, "b.example"), ("10.0.0.1",)),
            0.0,
            "it lacks the names 10.0.0.1, b.example",
        ),
        (Subject("pool-bookie", "broker", POOL.dns), 0.0, "it has another role or purpose"),
        (Subject("pool-bookie", "bookie", POOL.dns, server=False), 0.0, "it has another role or purpose"),
    ],
)
def test_a_certificate_is_renewed_for_a_reason(wanted: Subject, later_s: float, reason: str | None) -> None:
    pair = authority()
    found = issuing.read(issuing.issue(POOL, pair, NOW_S, LIFE_S))
    why = renewal(found, wanted, issuing.read(pair), NOW_S + later_s)
    assert (None if why is None else why.reason) == reason


def test_a_certificate_of_another_authority_of_the_same_name_is_renewed() -> None:
    found = issuing.read(issuing.issue(POOL, authority(), NOW_S, LIFE_S))
    why = renewal(found, POOL, authority_facts(), NOW_S)
    assert why is not None and why.reason == "it was signed by another authority"


def test_former_authorities_are_trusted_until_they_expire_and_listed_once() -> None:
    former = SIGNING
    assert trusted([former], NEXT, None, DUE_S) == [NEXT, former]
    assert trusted([former, NEXT], NEXT, None, DUE_S) == [NEXT, former]
    assert trusted([former], former, NEXT, DUE_S) == [former, NEXT]
    assert trusted([former], NEXT, None, NOW_S + AUTHORITY_LIFE_S) == [NEXT]


def test_a_certificate_that_is_not_an_authority_is_never_trusted() -> None:
    pair = authority()
    stray = issuing.read(issuing.issue(POOL, pair, NOW_S, LIFE_S))
    assert trusted([stray], issuing.read(pair), None, NOW_S) == [issuing.read(pair)]
