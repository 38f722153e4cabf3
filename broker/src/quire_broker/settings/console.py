"""Declares the settings of the web console."""

from quire_bookie.dataclass import dataclass
from quire_bookie.settings.declared import setting


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Whether a broker serves the web console, and keeps a day of rates for it."""

    enabled: bool = setting(
        True,
        "webConsoleEnabled",
        "the web console under /console/ of the HTTP ports, and a day of rates in memory; false: neither",
        short="web_console",
    )
