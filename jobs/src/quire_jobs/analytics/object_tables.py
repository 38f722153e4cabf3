"""Rows for small tables from buckets: the objects of offloaded ledgers. Only lists objects."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from quire_bookie.errors import ConfigError, ObjectStoreError
from quire_broker.offload.target import OffloadTarget, open_target

Row = tuple[Any, ...]


def targets_of(
    named: Iterable[tuple[str, tuple[tuple[str, str], ...]]],
    urls: Iterable[str],
    *,
    region: str = "",
    endpoint: str = "",
) -> tuple[list[OffloadTarget], dict[str, str]]:
    """Return the buckets that metadata and parameters refer to, each once; and invalid ones, with the reason.

    `region`, `endpoint`: of the buckets that are only in `urls`.
    """
    found: dict[tuple[str, str], OffloadTarget] = {}
    wrong: dict[str, str] = {}
    for driver, properties in named:
        try:
            target = OffloadTarget.from_properties(driver, dict(properties))
        except ConfigError as error:
            wrong[driver] = str(error)
        else:
            found.setdefault((target.url, target.endpoint), target)
    named_urls = {target.url for target in found.values()}
    for url in urls:
        try:
            target = OffloadTarget.from_url(url, region=region, endpoint=endpoint)
        except ConfigError as error:
            wrong[url] = str(error)
        else:
            if target.url not in named_urls:  # otherwise listed at the endpoint in the metadata
                found.setdefault((target.url, target.endpoint), target)
    return [found[place] for place in sorted(found)], wrong


async def read_objects(
    targets: Iterable[OffloadTarget], environment: Mapping[str, str] = os.environ
) -> tuple[list[Row], dict[str, str]]:
    """Return rows of the columns OBJECTS, of all targets; and targets that could not be listed, with the reason."""
    found: list[Row] = []
    failed: dict[str, str] = {}
    for target in targets:
        listed: list[Row] = []
        try:
            objects = open_target(target, environment)
            listed += [(one.name, one.size_bytes) async for one in objects.stored()]
        except (ObjectStoreError, ConfigError) as error:
            failed[target.url] = str(error)
        else:
            found += listed
    return found, failed
