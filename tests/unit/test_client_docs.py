"""Every example of docs/client.md, run as it stands there against three bookies in this process."""

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.client import ledger_client
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.settings.metadata import MetadataSettings
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.support.bookie_world import BookieWorld

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client.md"
SECTIONS = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
EXAMPLES = {
    f"{section.splitlines()[0]} {number}": code
    for section in SECTIONS
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL))
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))

    async def open_store(url: str, settings: MetadataSettings | None) -> MetadataStore:
        assert settings is None
        assert url == "the cluster's"
        return SimMetadataStore(metadata)

    monkeypatch.setattr(ledger_client, "open_metadata_store", open_store)
    example: dict[str, Any] = {}
    exec(compile(EXAMPLES[name], f"{PAGE.name}: {name}", "exec"), example)

    async def run() -> None:
        worlds = [BookieWorld(metadata=metadata) for _ in range(3)]
        for world in worlds:
            await world.start()
        try:
            async with asyncio.timeout(30):
                await example["main"]("the cluster's")
        finally:
            for world in worlds:
                await world.stop()

    asyncio.run(run())


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 6
