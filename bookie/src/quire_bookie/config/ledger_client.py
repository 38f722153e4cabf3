"""Reads the settings of the ledger client of a broker, standalone or auto-recovery."""

from typing import ClassVar

from quire_bookie.config.sources import ProcessConfig
from quire_bookie.settings.client import ClientSettings


class LedgerClientConfig(ProcessConfig):
    """Settings of timeouts, slow and failing bookies, reads and placement."""

    SETTINGS: ClassVar[tuple[type, ...]] = (ClientSettings,)
