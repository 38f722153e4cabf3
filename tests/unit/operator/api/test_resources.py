"""The models of the resources: accepted values, and parsing of the API server's objects."""

import pytest
from pydantic import ValidationError

from quire_bookie.config.bookie import BookieConfig
from quire_broker.config.broker import BrokerConfig
from quire_operator.api.bookie import Bookie
from quire_operator.api.bookie_spec import RESERVED_SETTINGS, JournalMode
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.managed_ledger_spec import RESERVED_BROKER_SETTINGS
from tests.support.kube_resources import bookie, managed_ledger


def test_a_minimal_bookie_has_every_default() -> None:
    found = Bookie.model_validate(bookie())
    assert found.spec.replicas == 3
    assert found.spec.durability.journal is JournalMode.SYNC
    assert found.spec.storage.ledgers.volumes == 1
    assert found.spec.engine.watermarks.full == 95
    assert found.status.bookies == ()
    assert found.meta.name == "pool"


def test_fields_of_a_newer_crd_are_ignored() -> None:
    assert Bookie.model_validate(bookie(futureField={"a": 1})).spec.replicas == 3


def test_plain_form_has_camel_case_names_and_no_unset_fields() -> None:
    plain = ManagedLedger.model_validate(managed_ledger()).spec.plain()
    assert plain["bookieRef"] == {"name": "pool"}
    assert "backlogQuota" not in plain
    assert plain["replication"]["writeQuorum"] == 3


@pytest.mark.parametrize("size", ["10 Gi", "-1Gi", "1e9", ""])
def test_an_invalid_size_is_refused(size: str) -> None:
    with pytest.raises(ValidationError):
        Bookie.model_validate(bookie(storage={"journal": {"size": size}, "ledgers": {"size": "1Gi"}}))


def test_cpu_amounts_may_be_plain_numbers() -> None:
    found = Bookie.model_validate(bookie(resources={"requests": {"cpu": 2, "memory": "4Gi"}}))
    assert found.spec.resources.requests == {"cpu": "2", "memory": "4Gi"}


@pytest.mark.parametrize("key", RESERVED_SETTINGS)
def test_reserved_keys_exist_in_the_bookie(key: str) -> None:
    assert BookieConfig.field_of(key) is not None


@pytest.mark.parametrize("key", RESERVED_BROKER_SETTINGS)
def test_reserved_keys_exist_in_the_broker(key: str) -> None:
    assert BrokerConfig.field_of(key) is not None
