"""The models of the resources: what they take, and what they make of what the API server gives them."""

import pytest
from pydantic import ValidationError

from quire_bookie.config import BookieConfig
from quire_broker.config.broker import BrokerConfig
from quire_operator.api.bookie import Bookie
from quire_operator.api.bookie_spec import RESERVED_SETTINGS, JournalMode
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.managed_ledger_spec import RESERVED_BROKER_SETTINGS
from tests.support.kube_resources import bookie, managed_ledger


def test_a_smallest_bookie_has_every_default() -> None:
    found = Bookie.model_validate(bookie())
    assert found.spec.replicas == 3
    assert found.spec.durability.journal is JournalMode.SYNC
    assert found.spec.storage.ledgers.volumes == 1
    assert found.spec.engine.watermarks.full == 95
    assert found.status.bookies == ()
    assert found.meta.name == "pool"


def test_fields_of_a_newer_crd_are_no_error() -> None:
    assert Bookie.model_validate(bookie(futureField={"a": 1})).spec.replicas == 3


def test_what_is_written_has_the_names_of_the_manifest_and_nothing_that_is_unset() -> None:
    plain = ManagedLedger.model_validate(managed_ledger()).spec.plain()
    assert plain["bookieRef"] == {"name": "pool"}
    assert "backlogQuota" not in plain
    assert plain["replication"]["writeQuorum"] == 3


@pytest.mark.parametrize("size", ["10 Gi", "-1Gi", "1e9", ""])
def test_a_size_that_is_no_quantity_is_refused(size: str) -> None:
    with pytest.raises(ValidationError):
        Bookie.model_validate(bookie(storage={"journal": {"size": size}, "ledgers": {"size": "1Gi"}}))


def test_amounts_of_cpu_may_be_bare_numbers() -> None:
    found = Bookie.model_validate(bookie(resources={"requests": {"cpu": 2, "memory": "4Gi"}}))
    assert found.spec.resources.requests == {"cpu": "2", "memory": "4Gi"}


@pytest.mark.parametrize("key", RESERVED_SETTINGS)
def test_a_key_that_the_operator_keeps_to_itself_is_one_of_the_bookie(key: str) -> None:
    assert BookieConfig.field_of(key) is not None


@pytest.mark.parametrize("key", RESERVED_BROKER_SETTINGS)
def test_a_key_that_the_operator_keeps_to_itself_is_one_of_the_broker(key: str) -> None:
    assert BrokerConfig.field_of(key) is not None
