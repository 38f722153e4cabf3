"""Shows a running process on the terminal: how to connect, and its progress once a second. Never measures itself."""

import logging
import os
from collections.abc import Sequence
from types import TracebackType

from quire_bookie.cli.rest import DEFAULT_HTTP
from quire_bookie.dataclass import dataclass
from quire_broker.cli.traffic import DEFAULT_URL
from quire_broker.ownership.owners import BrokerUrls


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters at one loop time. `storage_bytes` None: unknown."""

    at_s: float
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int
    connections: int
    topics: int
    storage_bytes: int | None


def in_units(size_bytes: float) -> str:
    """Return a size such as `1.5 MiB`."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def describe(before: Sample, now: Sample) -> str:
    """Return one line: rates between two samples, and totals."""
    passed_s = max(now.at_s - before.at_s, 1e-9)

    def flow(messages: int, size_bytes: int, total: int) -> str:
        return f"{messages / passed_s:,.0f} msg/s {in_units(size_bytes / passed_s)}/s ({total:,} in all)"

    parts = [
        "in " + flow(now.messages_in - before.messages_in, now.bytes_in - before.bytes_in, now.messages_in),
        "out " + flow(now.messages_out - before.messages_out, now.bytes_out - before.bytes_out, now.messages_out),
    ]
    if now.storage_bytes is not None:
        parts.append(f"storage {in_units(now.storage_bytes)}")
    parts.append(f"{now.topics} topics, {now.connections} connections")
    return " | ".join(parts)


def log_status(log: logging.Logger, before: Sample, now: Sample) -> None:
    """Log a line if there was traffic."""
    if (now.messages_in, now.messages_out, now.connections) != (
        before.messages_in,
        before.messages_out,
        before.connections,
    ):
        log.info("%s", describe(before, now))


def own_command(program: str) -> str:
    """Return the command for a second terminal in the same folder: `quire`, or its path below that folder."""
    below = os.path.relpath(program)
    return "quire" if below.startswith("..") else below


def _exports(urls: BrokerUrls) -> list[str]:
    """Return the export line for our commands, if their default addresses differ from the process."""
    asked = {"QUIRE_BROKER": (urls.clients, DEFAULT_URL), "QUIRE_HTTP": (urls.web, DEFAULT_HTTP)}
    given = [f"{name}={url}" for name, (url, default) in asked.items() if url not in ("", default)]
    return [f"  export {' '.join(given)}"] if given else []


def standalone_banner(
    urls: BrokerUrls,
    bookies: Sequence[tuple[str, int]],
    data: str,
    metadata: str,
    command: str = "quire",
    *,
    has_console: bool = True,
) -> str:
    """Return the ports and how to connect. `command`: how the `quire` command is called from here."""
    rows = [
        ("Pulsar clients", urls.clients),
        ("REST and admin", urls.web),
        *([("web console", f"{urls.web}/console/")] if has_console else []),
        ("health, metrics", f"{urls.web}/healthz  {urls.web}/metrics"),
        *((f"bookie {name}", f"port {port}") for name, port in bookies),
        ("data", data),
        ("metadata", metadata),
    ]
    width = max(len(name) for name, _ in rows)
    lines = ["Quire is running.", *(f"  {name:<{width}}  {value}" for name, value in rows), ""]
    return "\n".join(
        [
            *lines,
            "Try it in a second terminal:",
            *_exports(urls),
            f"  {command} produce my-topic FILE     {command} consume my-topic     {command} topic list",
            "or connect any Pulsar client:",
            f'  pulsar.Client("{urls.clients}")',
            "Stop with Ctrl-C; acknowledged messages stay in the data folder.",
        ]
    )


class StatusLine:
    """Owns the last line of a terminal, rewritten at each update."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(), auto_refresh=False, transient=True)

    def __enter__(self) -> "StatusLine":
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, before: Sample, now: Sample) -> None:
        """Rewrite the line."""
        from rich.text import Text

        self._live.update(Text(describe(before, now), no_wrap=True, overflow="ellipsis"), refresh=True)
