"""Rounds of file damage: a file, a damage and an image are drawn from the seed of each round."""

import random
import shutil
from collections import Counter
from pathlib import Path

from tests.damage.corpus import Image, build_with_other, files_of, kind_of
from tests.damage.outcome import Damage, LossError, trial


class FileDamage:
    """Runs rounds on images that are made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._images: list[Image] = []
        self.counts: Counter[tuple[str, str, str]] = Counter()
        """(kind of file, damage, outcome) -> rounds."""

    async def begin(self) -> None:
        """Make the images."""
        place = self._folder / "images"
        shutil.rmtree(place, ignore_errors=True)
        self._images = await build_with_other(place)

    async def round(self, seed: int) -> None:
        """Draw until there is something to do, and do it. LossError."""
        chance = random.Random(seed)
        while True:
            image = chance.choice(self._images)
            names = files_of(image.folder)
            kinds = sorted({kind_of(image.folder, name) for name in names})
            kind = chance.choice(kinds)
            name = chance.choice([name for name in names if kind_of(image.folder, name) == kind])
            damage = chance.choice(list(Damage))
            try:
                outcome = await trial(image, name, kind, damage, seed, self._folder / f"round-{seed}")
            except LossError:
                self.counts[kind, damage.value, "LOSS"] += 1
                raise
            if outcome is not None:
                self.counts[kind, damage.value, outcome.value] += 1
                return
