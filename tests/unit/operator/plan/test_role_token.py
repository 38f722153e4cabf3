"""When a token is issued and renewed, as tables."""

from typing import Any

import pytest

from quire_operator.api.client_role import ClientRole
from quire_operator.plan.role_token import ObservedToken, renewed_token, wanted_token
from tests.support.kube_resources import declared

NOW_S = 1_900_000_000.0
URL = "pulsar://orders-broker.ns.svc:6650"
HOUR_S = 3600.0


def role(**token: Any) -> ClientRole:
    return ClientRole.model_validate(declared("ClientRole", "billing", token=token))


def token(left_s: float = 600 * HOUR_S, of: str | None = "billing", url: str = URL) -> ObservedToken:
    return ObservedToken(None, True, True, of, NOW_S + left_s, url)


@pytest.mark.parametrize(
    ("seen", "issued"),
    [
        (ObservedToken(), True),
        (token(), False),
        (token(of="other"), True),
        (token(of=None), True),
        (token(left_s=0), True),
        (token(url="pulsar+ssl://orders-broker.ns.svc:6651"), True),
    ],
    ids=["missing", "valid", "of another role", "of another key", "expired", "of another address"],
)
def test_a_token_is_issued_if_there_is_none_that_is_valid(seen: ObservedToken, issued: bool) -> None:
    found = wanted_token(role(), seen, URL, NOW_S)
    assert (found is not None) is issued
    if found is not None:
        assert (found.role, found.secret_name, found.expires_s) == ("billing", "billing-token", NOW_S + 720 * HOUR_S)


@pytest.mark.parametrize(
    ("spec", "left_hours", "renewed"),
    [
        ({}, 241, False),
        ({}, 239, True),
        ({"renewBefore": "24h"}, 25, False),
        ({"renewBefore": "24h"}, 23, True),
        ({"validFor": "30m"}, 0.25, False),
        ({"validFor": "30m"}, 0.1, True),
        ({"validFor": "30m"}, 700, True),
    ],
)
def test_a_token_is_renewed_before_it_expires_and_if_it_lives_longer_than_declared(
    spec: dict[str, Any], left_hours: float, renewed: bool
) -> None:
    assert (renewed_token(role(**spec), token(left_hours * HOUR_S), URL, NOW_S) is not None) is renewed
