"""The Secrets with ledger passwords, on a fake API server."""

from typing import Any, cast

import pytest

from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.ledger_passwords import KEPT_S, LedgerPasswords
from quire_operator.errors import UnreachableError
from tests.support import kube_resources
from tests.unit.operator.certificates.test_keeping import NOW_S, PLACE, ROOT, Store, managed_ledger

PATH = f"{ROOT}/orders-ledger-password"


@pytest.fixture
def store() -> Store:
    return Store()


def passwords(store: Store) -> LedgerPasswords:
    return LedgerPasswords(cast(Kube, store))


async def test_a_password_is_created_once_and_owned_by_its_resource(store: Store) -> None:
    process = passwords(store)
    assert await process.ensure(managed_ledger(), NOW_S) is None
    assert store.writes() == [f"POST {PATH}"]
    first = store.data("orders-ledger-password")["password"]
    assert len(first) == 48 and store.objects[PATH]["metadata"]["ownerReferences"][0]["name"] == "orders"
    assert await process.ensure(managed_ledger(), NOW_S + 1) is None
    assert store.asked == []
    assert await process.ensure(managed_ledger(), NOW_S + KEPT_S) is None
    assert await passwords(store).ensure(managed_ledger(), NOW_S) is None
    assert store.writes() == [] and store.data("orders-ledger-password")["password"] == first


async def test_a_deleted_secret_is_created_again(store: Store) -> None:
    process = passwords(store)
    await process.ensure(managed_ledger(), NOW_S)
    store.objects.clear()
    await process.ensure(managed_ledger(), NOW_S + KEPT_S)
    assert PATH in store.objects


async def test_a_lost_write_is_repeated_in_the_next_reconciliation(store: Store) -> None:
    process = passwords(store)
    store.lost = 1
    with pytest.raises(UnreachableError):
        await process.ensure(managed_ledger(), NOW_S)
    await process.ensure(managed_ledger(), NOW_S)
    assert PATH in store.objects


async def test_an_existing_secret_is_used_unchanged(store: Store) -> None:
    there: dict[str, Any] = {"metadata": {"name": "orders-ledger-password"}, "data": {"password": "c2VzYW1l"}}
    store.objects[PATH] = there
    assert await passwords(store).ensure(managed_ledger(), NOW_S) is None
    store.objects[PATH] = there | {"data": {"other": "eA=="}}
    fault = await passwords(store).ensure(managed_ledger(), NOW_S)
    assert fault is not None and "orders-ledger-password has no key password" in fault
    assert store.writes() == []


async def test_a_resource_with_its_own_secret_or_in_deletion_gets_none(store: Store) -> None:
    assert await passwords(store).ensure(managed_ledger(brokers={"ledgerPasswordSecret": "mine"}), NOW_S) is None
    going = kube_resources.changed(
        kube_resources.managed_ledger(), PLACE | {"metadata.deletionTimestamp": "2026-01-01T00:00:00Z"}
    )
    assert await passwords(store).ensure(ManagedLedger.model_validate(going), NOW_S) is None
    assert store.asked == []
