"""Reads the listeners of a broker that its environment assigns, such as the address of its load balancer."""

import re
from collections.abc import Mapping
from pathlib import Path

from quire_bookie.errors import StartupError
from quire_broker.config.broker import BrokerConfig
from quire_broker.ownership.listeners import parse_listeners

_VARIABLE = re.compile(r"\$\((\w+)\)")


def with_listeners_of_file(config: BrokerConfig, environment: Mapping[str, str]) -> BrokerConfig:
    """Return the configuration with the listeners of `advertisedListenersFile` added. StartupError."""
    path, key = config.advertised_listeners_file, BrokerConfig.key_of("advertised_listeners_file")
    if not path:
        return config
    try:
        text = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StartupError(
            f"{key}: {path} cannot be read: {reason}; name a file with listeners, e.g. "
            "external:pulsar://broker.example:6650, or leave the setting empty"
        ) from error
    if not text:
        raise StartupError(
            f"{key}: {path} is empty; write listeners into it, e.g. "
            "external:pulsar://broker.example:6650, or leave the setting empty"
        )
    for name in sorted(set(_VARIABLE.findall(text))):
        if name not in environment:
            raise StartupError(f"{key}: {path} names $({name}), which is no environment variable")
        text = text.replace(f"$({name})", environment[name])
    both = ",".join(filter(None, [config.advertised_listeners, text]))
    try:
        parse_listeners(both)
    except ValueError as error:
        raise StartupError(f"{key}: {path}: {error}") from error
    return config.model_copy(update={"advertised_listeners": both})
