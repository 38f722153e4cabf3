"""/admin/v2/schemas: there is no registry yet, and that is what these paths say."""

from aiohttp import web

from quire_broker.admin.answers import failure


def add_routes(router: web.UrlDispatcher) -> None:
    """The routes of this module."""
    router.add_get("/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema", missing)
    router.add_post("/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema", not_served)


async def missing(request: web.Request) -> web.Response:
    """No topic has a schema."""
    return failure(404, "Schema not found")


async def not_served(request: web.Request) -> web.Response:
    """Schemas cannot be registered yet."""
    return failure(412, "schemas are not served yet")
