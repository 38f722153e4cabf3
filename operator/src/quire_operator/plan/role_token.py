"""Decides when the token of a role is issued. Pure: knows neither the key nor the token."""

from dataclasses import dataclass

from quire_operator.api.client_role import ClientRole
from quire_operator.api.quantities import duration_s
from quire_operator.plan.actions import IssueToken

CLOCKS_DIFFER_S = 60.0


@dataclass(frozen=True, slots=True)
class ObservedToken:
    """The Secret of a token, and the key that signs it."""

    key_fault: str | None = None
    """Why no token can be signed."""
    exists: bool = False
    """There is a Secret of that name."""
    ours: bool = False
    """It belongs to the resource."""
    role: str | None = None
    """The role of its token; None if the token was not signed with the current key."""
    expires_s: float | None = None
    service_url: str = ""


def token_fault(resource: ClientRole, token: ObservedToken) -> tuple[str, str] | None:
    """Return reason and message of what keeps the operator from issuing a token; None otherwise."""
    if token.key_fault is not None:
        return "NoSigningKey", token.key_fault
    if token.exists and not token.ours:
        return "SecretNotOurs", (
            f"Secret {resource.secret_name} exists and does not belong to this resource: delete it, or set "
            "token.secretName to another name"
        )
    return None


def wanted_token(resource: ClientRole, token: ObservedToken, service_url: str, now_s: float) -> IssueToken | None:
    """Return the token to issue because the Secret has none that is valid and as declared; None otherwise."""
    valid = token.role == resource.name and token.expires_s is not None and token.expires_s > now_s
    return None if valid and token.service_url == service_url else _issue(resource, service_url, now_s)


def renewed_token(resource: ClientRole, token: ObservedToken, service_url: str, now_s: float) -> IssueToken | None:
    """Return the token that replaces a valid one, because it expires soon or later than declared; None otherwise."""
    valid_s = duration_s(resource.spec.token.valid_for)
    before = resource.spec.token.renew_before
    before_s = valid_s / 3 if before is None else duration_s(before)
    left_s = (token.expires_s or now_s) - now_s
    due = left_s < before_s or left_s > valid_s + CLOCKS_DIFFER_S
    return _issue(resource, service_url, now_s) if due else None


def _issue(resource: ClientRole, service_url: str, now_s: float) -> IssueToken:
    expires_s = int(now_s + duration_s(resource.spec.token.valid_for))
    return IssueToken(resource.secret_name, resource.name, expires_s, service_url)
