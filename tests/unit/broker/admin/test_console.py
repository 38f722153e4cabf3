"""The files of the web console: their names and headers, and that they match their source."""

import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from quire_broker.admin.console import TYPES, file_of
from quire_broker.server.broker import RunningBroker
from quire_broker.settings.console import ConsoleSettings
from tests.support.broker_world import running_brokers

SOURCE = Path(__file__).resolve().parents[4] / "console"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_brokers(tmp_path, 1) as world:
        yield world.brokers[0]


async def test_the_files_are_served_with_a_strict_policy(broker: RunningBroker) -> None:
    root = f"http://127.0.0.1:{broker.http_port}/console/"
    async with aiohttp.ClientSession() as session:
        for name, content_type in (*TYPES.items(), ("", "text/html")):
            async with session.get(root + name) as answer:
                assert (answer.status, answer.content_type) == (200, content_type)
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert await answer.read() == file_of(name or "index.html")


@pytest.mark.parametrize("name", ["other.js", "..%2Fconsole.py", "%2e%2e%2fweb.py", "console.js%00"])
async def test_no_other_file_is_served(broker: RunningBroker, name: str) -> None:
    url = f"http://127.0.0.1:{broker.http_port}/console/{name}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 404


async def test_the_folder_is_found_without_its_slash(broker: RunningBroker) -> None:
    url = f"http://127.0.0.1:{broker.http_port}/console"
    async with aiohttp.ClientSession() as session, session.get(url, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (308, "/console/")


async def test_the_console_can_be_off(tmp_path: Path) -> None:
    async with (
        running_brokers(tmp_path, 1, console=ConsoleSettings(enabled=False)) as world,
        aiohttp.ClientSession() as session,
    ):
        assert "/console/" not in await _status_page(session, world.brokers[0])
        for path in ("console", "console/", "console/console.js"):
            async with session.get(f"http://127.0.0.1:{world.brokers[0].http_port}/{path}") as answer:
                assert answer.status == 404
                assert "webConsoleEnabled=false" in (await answer.json())["reason"]


async def _status_page(session: aiohttp.ClientSession, broker: RunningBroker) -> str:
    async with session.get(f"http://127.0.0.1:{broker.http_port}/") as answer:
        return await answer.text()


async def test_the_status_page_leads_to_the_console(broker: RunningBroker) -> None:
    async with aiohttp.ClientSession() as session:
        assert '<a href="/console/">console</a>' in await _status_page(session, broker)


def test_the_page_has_nothing_that_the_policy_forbids() -> None:
    page = file_of("index.html").decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)", page) and "<style" not in page and " style=" not in page
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page), "the console works offline"


def test_the_committed_files_are_those_that_the_source_gives(tmp_path: Path) -> None:
    if shutil.which("node") is None or not (SOURCE / "node_modules" / "esbuild").is_dir():
        pytest.skip("no Node, or `make console` has not installed the packages of console/package-lock.json")
    subprocess.run(["node", "build.mjs", str(tmp_path)], cwd=SOURCE, check=True)
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert built == {name: file_of(name) for name in TYPES}, "run `make console`"
