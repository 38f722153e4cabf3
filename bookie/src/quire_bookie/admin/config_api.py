"""`/api/v1/config/server_config`: what this process was told, without its secrets. Changes nothing."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from quire_bookie.admin.answers import RefusedError


class ConfigApi:
    """The handlers. `settings`: key to value, as `quire config show` prints them, secrets already taken out."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings

    def routes(self) -> list[web.RouteDef]:
        """Path, method and handler of each."""
        return [
            web.get("/api/v1/config/server_config", self._get),
            web.put("/api/v1/config/server_config", self._put),
        ]

    async def _get(self, _: web.Request) -> web.Response:
        """A map of text to text, as BookKeeper has it."""
        return web.json_response({key: _text(value) for key, value in self._settings.items()})

    async def _put(self, _: web.Request) -> web.Response:
        """BookKeeper changes its copy of the settings here, most of which nobody reads again. We say no instead."""
        raise RefusedError(
            403,
            "settings are read at the start: change the file, the environment or the flags and restart the bookie; "
            "read-only mode and compaction have paths of their own (/api/v1/bookie/state/readonly, /gc)",
        )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
