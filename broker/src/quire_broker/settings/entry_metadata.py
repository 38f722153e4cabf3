"""Names what a broker adds to the entries that it stores."""

from typing import Final

from quire_bookie.dataclass import dataclass

_TIMESTAMP: Final = "AppendBrokerTimestampMetadataInterceptor"
_INDEX: Final = "AppendIndexMetadataInterceptor"
_PACKAGE: Final = "org.apache.pulsar.common.intercept."


@dataclass(frozen=True, slots=True)
class EntryMetadataSettings:
    """The metadata that is added to each entry."""

    timestamp: bool = False
    """The time at which the broker took it."""
    index: bool = False
    """The number of messages of the topic before its last one."""

    @property
    def active(self) -> bool:
        """Whether anything is added."""
        return self.timestamp or self.index


def parse_interceptors(text: str) -> EntryMetadataSettings:
    """Return what the named interceptors of Pulsar add, separated by commas. ValueError for others."""
    names = [name.strip().removeprefix(_PACKAGE) for name in text.split(",") if name.strip()]
    for name in names:
        if name not in (_TIMESTAMP, _INDEX):
            raise ValueError(
                f"it names {name[:200]!r}; a broker here has {_PACKAGE}{_TIMESTAMP} and "
                f"{_PACKAGE}{_INDEX}, and cannot load other classes of Java: remove it"
            )
    return EntryMetadataSettings(timestamp=_TIMESTAMP in names, index=_INDEX in names)
