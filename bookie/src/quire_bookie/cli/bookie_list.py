"""`quire bookie list`: the bookies of the cluster with their states and the fill of their disks, over HTTP."""

import re
from typing import Any, Final

import typer

from quire_bookie.cli.refusals import MissingError
from quire_bookie.cli.rest import DEFAULT_HTTP, Http, get
from quire_bookie.cli.tables import Column, Output, OutputOption, print_rows

_SPACE: Final = re.compile(r": \{Free: (\d+), Total: (\d+)\}")
"""BookKeeper's own form of the answer."""
_GIB: Final = 1 << 30
_COLUMNS: Final = (
    Column("bookie", lambda row: row["bookie"]),
    Column("state", lambda row: row["state"]),
    Column("used", lambda row: None if row["used"] is None else f"{row['used']:.0%}"),
    Column("free GiB", lambda row: None if row["freeBytes"] is None else round(row["freeBytes"] / _GIB)),
    Column("total GiB", lambda row: None if row["totalBytes"] is None else round(row["totalBytes"] / _GIB)),
    Column("address", lambda row: row["address"]),
    Column("machine", lambda row: row["machine"], wide=True),
    Column("rack", lambda row: row["rack"], wide=True),
    Column("drain", lambda row: row["drain"], wide=True),
    Column("blocked by", lambda row: "; ".join(row["blockedBy"]) or None, wide=True),
)


def register(app: typer.Typer) -> None:
    """Add the command to `quire bookie`."""

    @app.command("list")
    def list_(http: Http = DEFAULT_HTTP, output: OutputOption = Output.TABLE) -> None:
        """List the running bookies: state, fill of their disks, address.

        With -o wide also machine, rack and what a drain waits for. Older processes report neither machine nor rack.
        """
        print_rows(_rows(http), _COLUMNS, output, name=lambda row: row["bookie"], empty="no bookie is registered")


def _places(http: str) -> dict[str, dict[str, str]]:
    """Return machine and rack by bookie; nothing if the process is older than this path."""
    try:
        found: dict[str, dict[str, str]] = get(http, "/api/v1/quire/places")
    except MissingError:
        return {}
    return found


def _rows(http: str) -> list[dict[str, Any]]:
    """Return a row for each registered bookie, by id."""
    drains = {drain["bookie"]: drain for drain in get(http, "/api/v1/quire/drains")}
    spaces: dict[str, str] = get(http, "/api/v1/bookie/list_bookie_info")
    places = _places(http)
    rows = []
    for kind, state in (("rw", "writable"), ("ro", "read-only")):
        path = f"/api/v1/bookie/list_bookies?type={kind}&print_hostnames=true"
        for bookie, address in get(http, path).items():
            drain = drains.get(bookie)
            found = _SPACE.fullmatch(spaces.get(bookie, ""))
            free, total = (int(found[1]), int(found[2])) if found else (None, None)
            rows.append(
                {
                    "bookie": bookie,
                    "state": state if drain is None else f"{state}, {drain['wish']}: {drain['state']}",
                    "address": address,
                    "machine": places.get(bookie, {}).get("machine"),
                    "rack": places.get(bookie, {}).get("rack"),
                    "freeBytes": free,
                    "totalBytes": total,
                    "used": None if not total or free is None else 1 - free / total,
                    "drain": None if drain is None else drain["wish"],
                    "blockedBy": [] if drain is None else drain["blocked_by"],
                }
            )
    return sorted(rows, key=lambda row: str(row["bookie"]))
