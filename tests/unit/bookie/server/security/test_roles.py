"""Tests of roles from certificates, whose subjects have BookKeeper's form."""

import pytest

from quire_bookie.server.security.auth import Admitted, Peer, Refused, Subject, subject_of
from quire_bookie.server.security.roles import CertificateRoles, roles_of

UNIT = "organizationalUnitName"


@pytest.mark.parametrize(
    ("unit", "roles"),
    [
        ("0:broker", ["broker"]),
        ("0:broker;1:cluster", ["broker"]),
        ("1:cluster;0: broker , admin ", ["broker", "admin"]),
        ("0:a:b", ["a:b"]),
        ("0:first;0:second", ["second"]),
        ("1:broker", []),
        ("broker", []),
        (" 0:broker", []),
        ("0:", []),
        ("0:,", []),
        ("", []),
    ],
)
def test_the_role_names_follow_code_zero(unit: str, roles: list[str]) -> None:
    assert roles_of([("commonName", "x"), (UNIT, unit)]) == roles


def test_the_first_unit_of_a_subject_counts() -> None:
    assert roles_of([(UNIT, "0:first"), (UNIT, "0:second")]) == ["first"]
    assert roles_of([("commonName", "0:broker")]) == []


def test_a_subject_is_read_from_the_form_of_the_ssl_module() -> None:
    certificate = {"subject": ((("countryName", "XY"),), ((UNIT, "0:broker"), ("commonName", "c")))}
    assert subject_of(certificate) == [("countryName", "XY"), (UNIT, "0:broker"), ("commonName", "c")]
    assert subject_of({}) is None
    assert subject_of(None) is None


@pytest.mark.parametrize(
    ("subject", "role"),
    [
        ([(UNIT, "0:broker")], "broker"),
        ([(UNIT, "0:broker,other")], "broker"),
        ([(UNIT, "0:other,broker")], None),
        ([(UNIT, "0:Broker")], None),
        ([(UNIT, "0:")], None),
        ([], None),
        (None, None),
    ],
)
def test_only_the_first_role_of_the_certificate_admits_a_client(subject: Subject | None, role: str | None) -> None:
    exchange = CertificateRoles(("recovery", "broker")).begin(Peer("1.2.3.4"))
    step = exchange.secured(Peer("1.2.3.4", True, subject))
    assert step == Admitted(role) if role else isinstance(step, Refused)


def test_no_message_admits_a_client() -> None:
    assert isinstance(CertificateRoles(("broker",)).begin(Peer("1.2.3.4")).process(b"broker"), Refused)
