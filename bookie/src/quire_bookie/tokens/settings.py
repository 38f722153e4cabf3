"""How tokens are checked. Values only."""

from dataclasses import dataclass, field

from quire_bookie import limits
from quire_bookie.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """How tokens are checked. Keys are `file:` or `data:` URLs or paths, as Pulsar has them; one of the three is set.

    `claim`: holds the role. `audience`: must be among the token's `audience_claim` unless empty.
    `tokens_path`: a file with lines `role token`. The file, whichever it is, is read anew every `refresh_s`; 0: never.
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
        """ConfigError unless exactly one kind of key is there."""
        given = [name for name in ("secret_key", "public_key", "tokens_path") if getattr(self, name)]
        if len(given) != 1:
            raise ConfigError(
                "token authentication needs exactly one of tokenSecretKey, tokenPublicKey and tokenStaticFile; "
                f"{len(given)} are set"
            )
