"""Provides the password of a broker's ledgers: the configured one, or that in a standalone's data folder."""

from quire_bookie.cli.data_folder import LEDGER_PASSWORD_FILE
from quire_bookie.env.chance import Chance
from quire_bookie.env.secret_file import SecretFiles, secret_text, write_secret
from quire_bookie.errors import StartupError
from quire_broker.config.broker import ManagedLedgerConfig

_BYTES = 24


async def configured_password(config: ManagedLedgerConfig) -> bytes:
    """Return the password of `managedLedgerPassword`; empty if not set. ConfigError for an unusable file."""
    return await secret_text(config.managed_ledger_password, config.key_of("managed_ledger_password"))


async def standalone_password(config: ManagedLedgerConfig, data: str, chance: Chance) -> bytes:
    """Return the configured password, else that of the data folder, created at the first start.

    ConfigError, StartupError.
    """
    found = await configured_password(config)
    path = f"{data}/{LEDGER_PASSWORD_FILE}"
    if found:
        return found
    if not await SecretFiles().exists(path):
        drawn = chance.token(_BYTES).hex().encode()
        await write_secret(path, drawn + b"\n")
        return drawn
    kept = (await SecretFiles().read_file(path)).strip()
    if not kept:
        raise StartupError(
            f"{path} is empty; it should hold the password of new ledgers: remove it to generate a new password"
        )
    return kept
