"""Reasons why keys of a stock process have no effect on ours. Pure."""

from collections.abc import Iterable


class Reasons:
    """A table of reasons and names of keys. The first row that fits a key counts."""

    def __init__(self, rows: Iterable[tuple[str, str]]) -> None:
        """`rows`: a reason, and names joined by spaces. A name with `*` stands for all keys that begin with it."""
        self._entries = [(reason, name) for reason, names in rows for name in names.split()]

    def why(self, key: str) -> str | None:
        """Return why a key has no effect; None for a key that the stock process does not have."""
        for reason, name in self._entries:
            if key == name or (name.endswith("*") and key.startswith(name[:-1])):
                return reason
        return None

    def reports(self, keys: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return a line for each reason, with the keys that it explains, and the keys that are not known."""
        explained: dict[str, list[str]] = {}
        unknown = []
        for key in keys:
            reason = self.why(key)
            if reason is None:
                unknown.append(key)
            else:
                explained.setdefault(reason, []).append(key)
        return [f"no effect: {', '.join(named)}: {reason}" for reason, named in explained.items()], unknown
