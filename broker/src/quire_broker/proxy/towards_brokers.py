"""How a proxy proves itself to brokers, as it is configured. Each process that reads a file of settings loads this."""

import json
from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_bookie.limits import TLS_REFRESH_S
from quire_bookie.settings.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class TowardsBrokers:
    """How a proxy proves itself to brokers. `tls`: None for plaintext; its certificate is the proxy's.

    `method`: `token` or `basic` (the text `secret`, or the file `secret_path`, read for each connection), `tls`, or
    empty for none. The secret of `basic` is what `credentials_in` takes.
    """

    tls: TlsFiles | None = None
    check_host_name: bool = True
    refresh_s: float = TLS_REFRESH_S
    method: str = ""
    secret: str = field(default="", repr=False)
    secret_path: str = ""


def credentials_in(text: str) -> str:
    """Return `user:password` of the parameters of Pulsar's AuthenticationBasic: a JSON object. ValueError."""
    try:
        found = json.loads(text)
        user, password = found["userId"], found["password"]
    except (ValueError, KeyError, TypeError):
        user = password = None
    if not isinstance(user, str) or not isinstance(password, str) or not user or not password or ":" in user:
        raise ValueError('the parameters must be {"userId": "...", "password": "..."}, with a user without a colon')
    return f"{user}:{password}"
