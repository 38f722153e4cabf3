"""`quire broker balance`: where it finds the leader."""

from typing import Any

import pytest

from quire_bookie.errors import ConfigError
from quire_broker.cli.balance import leader_of


def state(leader: dict[str, str] | None) -> dict[str, Any]:
    return {"broker": "a:8443", "leader": leader}


def test_the_broker_that_is_asked_may_lead_and_another_is_asked_at_its_address() -> None:
    own = state({"brokerId": "a:8443", "serviceUrl": "http://a:8080"})
    assert leader_of("https://a.example:8443", own) == "https://a.example:8443"
    other = {"brokerId": "b:8443", "serviceUrl": "https://b:8443"}
    assert leader_of("https://a:8443", state(other)) == "https://b:8443"
    plain = {"brokerId": "b:8080", "serviceUrl": "http://b:8080"}
    assert leader_of("http://a:8080", state(plain)) == "http://b:8080"


def test_the_token_goes_to_no_leader_in_plaintext_after_tls() -> None:
    with pytest.raises(ConfigError, match="http://b:8080, in plaintext"):
        leader_of("https://a:8443", state({"brokerId": "b:8080", "serviceUrl": "http://b:8080"}))


def test_without_a_leader_the_command_says_so() -> None:
    with pytest.raises(ConfigError, match="no broker leads"):
        leader_of("http://a:8080", state(None))
