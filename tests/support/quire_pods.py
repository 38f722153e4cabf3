"""Processes that run with the arguments and the files of the operator's pods, on ports and folders of this machine."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders import auto_recovery, broker
from quire_operator.builders import bookie as bookie_builder
from quire_operator.builders.bookie import BookieFacts
from quire_operator.builders.broker import BrokerFacts
from quire_operator.builders.naming import ZONE_ANNOTATION

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
READY_TIMEOUT_S = 60


def arguments(template: dict[str, Any], config: Path) -> list[str]:
    """Of the main container, with a file of ours for the mounted one and this machine for the pod's name."""
    found: list[str] = template["spec"]["containers"][0]["args"]
    here = [str(config) if part.startswith("/etc/quire") else part for part in found]
    return [HOST if part.startswith("$(POD_NAME)") else part for part in here]


def with_settings(words: list[str], settings: dict[str, Any]) -> list[str]:
    """More settings behind the arguments."""
    return [*words, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]


def start_of_a_bookie(resource: Bookie, folder: Path, http_port: int) -> list[str]:
    """As its pod would, but for places and ports of this machine."""
    file = folder / "bookie.toml"
    file.write_text(bookie_builder.config_text(resource))
    pod = bookie_builder.stateful_set(resource, BookieFacts(1, "image"))["spec"]["template"]
    here = {
        "journalDirectories": folder / "journal",
        "ledgerDirectories": folder / "ledgers",
        "journalMaxSizeMB": 32,
        "bookiePort": 0,
        "httpServerPort": http_port,
    }
    if "bookieRackAnnotationsFile" in file.read_text():
        # As the operator annotates a pod on a node without a zone.
        here["bookieRackAnnotationsFile"] = folder / "annotations"
        (folder / "annotations").write_text(f'{ZONE_ANNOTATION}=""\n')
    return with_settings(arguments(pod, file), here)


def start_of_auto_recovery(resource: Bookie, folder: Path, http_port: int) -> list[str]:
    """As its pod would, but for the port."""
    file = folder / "autorecovery.toml"
    file.write_text(auto_recovery.config_text(resource))
    pod = auto_recovery.deployment(resource, "image")["spec"]["template"]
    return with_settings(arguments(pod, file), {"httpServerPort": http_port})


def start_of_a_broker(
    resource: ManagedLedger, pool: Bookie, folder: Path, http_port: int, port: int = 0, ordinal: int = 0
) -> list[str]:
    """As its pod would, but for the ports; it advertises the pod's name, which need not resolve for REST."""
    facts = BrokerFacts(pool, "image")
    file = folder / f"broker-{ordinal}.toml"
    revision = broker.revision_of(resource, facts)
    file.write_text(revision.config)
    pod = revision.template
    main = pod["spec"]["containers"][0]
    main["args"] = [part.replace("$(POD_NAME)", f"{resource.meta.name}-broker-{ordinal}") for part in main["args"]]
    return with_settings(arguments(pod, file), {"brokerServicePort": port, "webServicePort": http_port})


@asynccontextmanager
async def quire(words: list[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process until it is left."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from quire_bookie.cli.main import main; main()",
        *words,
        cwd=ROOT,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until_well(session: aiohttp.ClientSession, port: int, host: str = HOST) -> None:
    """The probe of its pod answers."""
    async with asyncio.timeout(READY_TIMEOUT_S):
        while True:
            try:
                async with session.get(f"http://{host}:{port}/healthz") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)
