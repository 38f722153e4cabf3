"""`/api/v1/config/server_config`: reports the settings of this process without secrets. Changes nothing."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from quire_bookie.admin.answers import RefusedError
from quire_bookie.admin.routes import Need, Route


class ConfigApi:
    """Handles the requests. `settings`: as `quire config show` prints them, with secrets already removed."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings

    def routes(self) -> list[Route]:
        """Return the routes with their permissions."""
        return [
            Route("GET", "/api/v1/config/server_config", self._get, Need.READ),
            Route("PUT", "/api/v1/config/server_config", self._put, Need.CHANGE),
        ]

    async def _get(self, _: web.Request) -> web.Response:
        """Return a map from text to text, as BookKeeper does."""
        return web.json_response({key: _text(value) for key, value in self._settings.items()})

    async def _put(self, _: web.Request) -> web.Response:
        """Refuse. BookKeeper changes its copy of the settings here, most of which are never read again."""
        raise RefusedError(
            403,
            "settings are read at the start: change the file, the environment or the flags and restart the bookie; "
            "read-only mode and compaction have separate paths (/api/v1/bookie/state/readonly, /gc)",
        )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
