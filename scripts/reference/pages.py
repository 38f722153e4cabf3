"""The pages of docs/reference and the functions that write them."""

from collections.abc import Callable
from pathlib import Path

from quire_broker.admin.openapi import pieces
from quire_broker.admin.web import all_routes
from scripts.reference import commands, metrics, resources, routes

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands.page,
    "rest.md": routes.page,
    "openapi.json": lambda: "".join(pieces(all_routes())),
    "resources.md": resources.page,
    "metrics.md": metrics.page,
}
