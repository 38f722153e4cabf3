"""The front of a bookie: each request gets to its room."""

from quire_bookie.wire import client_codec
from quire_bookie.wire.messages import BookieInfoResponse, Status
from tests.unit.bookie.server.scene import Scene


async def test_bookie_info_gives_what_was_asked_for(scene: Scene) -> None:
    assert await scene.ask_v3(client_codec.v3_bookie_info(1, 3)) == [BookieInfoResponse(Status.OK, 1000, 400, 1)]
    assert await scene.ask_v3(client_codec.v3_bookie_info(2, 2)) == [BookieInfoResponse(Status.OK, None, 400, 2)]
    assert await scene.ask_v3(client_codec.v3_bookie_info(3, 0)) == [BookieInfoResponse(Status.OK, None, None, 3)]
