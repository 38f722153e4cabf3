"""The password of a broker's ledgers: as configured, or the one that a standalone keeps in its data folder."""

from quire_bookie.cli.data_folder import LEDGER_PASSWORD_FILE
from quire_bookie.env.chance import Chance
from quire_bookie.env.secret_file import SecretFiles, write_secret
from quire_bookie.env.secret_text import secret_text
from quire_bookie.errors import StartupError
from quire_broker.config.broker import ManagedLedgerConfig

_BYTES = 24


async def configured_password(config: ManagedLedgerConfig) -> bytes:
    """The password of `managedLedgerPassword`; empty: there is none. ConfigError for a file that cannot be used."""
    return await secret_text(config.managed_ledger_password, config.key_of("managed_ledger_password"))


async def standalone_password(config: ManagedLedgerConfig, data: str, chance: Chance) -> bytes:
    """The configured password, else that of the data folder, drawn at the first start. ConfigError, StartupError."""
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
        raise StartupError(f"{path} is empty: it holds the password of new ledgers; remove it, and a new one is drawn")
    return kept
