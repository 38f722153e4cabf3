"""The effective TLS settings, depending on the resource and on whether the operator generates certificates."""

from typing import Any

import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders.effective import effective_bookie, effective_managed_ledger, is_generated
from tests.support.kube_resources import bookie, managed_ledger

OFF: dict[str, Any] = {"mode": "Disabled"}
OWN: dict[str, Any] = {"secretName": "own"}
OFFERED: dict[str, Any] = {"mode": "Offered"}


@pytest.mark.parametrize(
    ("tls", "generated", "mode", "secret"),
    [
        (None, True, "Required", "{}-tls"),
        (None, False, None, None),
        (OFF, True, None, None),
        (OFF, False, None, None),
        (OWN, True, "Required", "own"),
        (OWN, False, "Required", "own"),
        (OFFERED, True, "Offered", "{}-tls"),
        (OFFERED, False, "Offered", None),
    ],
)
def test_the_effective_tls_secret(
    tls: dict[str, Any] | None, generated: bool, mode: str | None, secret: str | None
) -> None:
    given = {} if tls is None else {"tls": tls}
    pool = effective_bookie(Bookie.model_validate(bookie(**given)), generated).spec.tls
    ledger = ManagedLedger.model_validate(managed_ledger(brokers=given, proxy=given))
    spec = effective_managed_ledger(ledger, generated).spec
    assert spec.proxy is not None
    parts = ((pool, "pool-bookie"), (spec.brokers.tls, "orders-broker"), (spec.proxy.tls, "orders-proxy"))
    for found, name in parts:
        assert (None if found is None else found.mode) == mode
        assert (None if found is None else found.secret_name) == (None if secret is None else secret.format(name))


def test_the_ledger_password_is_from_the_named_or_the_generated_secret() -> None:
    plain = ManagedLedger.model_validate(managed_ledger())
    named = ManagedLedger.model_validate(managed_ledger(brokers={"ledgerPasswordSecret": "mine"}))
    secrets = [
        effective_managed_ledger(one, False, passwords=made).spec.brokers.ledger_password_secret
        for one in (plain, named)
        for made in (True, False)
    ]
    assert secrets == ["orders-ledger-password", None, "mine", "mine"]


def test_it_is_idempotent_and_changes_nothing_else() -> None:
    pool = Bookie.model_validate(bookie(replicas=5))
    once = effective_bookie(pool, True)
    assert effective_bookie(once, True) == once
    assert once.model_copy(update={"spec": once.spec.model_copy(update={"tls": None})}) == pool
    assert is_generated(None) and not is_generated(once.spec.tls)
