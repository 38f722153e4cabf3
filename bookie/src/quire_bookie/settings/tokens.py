"""Declares the settings of token verification."""

from dataclasses import field

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Settings of token verification. Keys are `file:` or `data:` URLs or paths, as in Pulsar; one of the three is set.

    `claim`: contains the role. `audience`: must be in the token's `audience_claim` unless empty. `tokens_path`: a file
    with lines `role token`. The file of the key or list is read again every `refresh_s`; 0: never.
    """

    secret_key: str = field(default="", repr=False)
    public_key: str = field(default="", repr=False)
    algorithm: str = "RS256"
    claim: str = "sub"
    audience_claim: str = "aud"
    audience: str = ""
    tokens_path: str = ""
    refresh_s: float = limits.TOKEN_REFRESH_S

    def __post_init__(self) -> None:
        """Raise ConfigError unless exactly one kind of key is set."""
        given = [name for name in ("secret_key", "public_key", "tokens_path") if getattr(self, name)]
        if len(given) != 1:
            raise ConfigError(
                "token authentication needs exactly one of tokenSecretKey, tokenPublicKey and tokenStaticFile; "
                f"{len(given)} are set"
            )
