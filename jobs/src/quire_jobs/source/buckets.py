"""Whether what lies in buckets alone can be had: asked while planning, where there is one place to say so."""

import logging
from collections.abc import Iterable

from quire_bookie.errors import ConfigError
from quire_bookie.places.errors import PlaceError
from quire_broker.managed_ledger.offload_context import OffloadContext
from quire_broker.offload.errors import OffloadError
from quire_broker.offload.target import OffloadTarget
from quire_broker.offload.tier import Tier
from quire_jobs.errors import JobOptionsError, SourceUnavailableError
from quire_jobs.source.spans import Log

_log = logging.getLogger("quire.jobs.source")


class BucketCheck:
    """Asks each bucket once. Not those whose ledgers the bookies have as well: a task reads on from there."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._asked: set[OffloadTarget] = set()

    async def of(self, logs: Iterable[Log]) -> None:
        """SourceUnavailableError: the index of a ledger cannot be read. JobOptionsError: it is in no place we know."""
        for log in logs:
            for span in log.spans:
                context = None if span.record is None else span.record.offload
                if context is not None and context.bookies_deleted and context.uuid:
                    await self._ask(span.ledger_id, context)

    async def _ask(self, ledger_id: int, context: OffloadContext) -> None:
        properties = dict(context.properties)
        try:
            target = OffloadTarget.from_properties(context.driver, properties)
            if target in self._asked:
                return
            reader = await self._tier.open(ledger_id, context.uuid, context.driver, properties)
            await reader.close()
        except ConfigError as error:
            raise JobOptionsError(f"quire source: ledger {ledger_id} is offloaded: {error}") from error
        except PlaceError as error:
            raise SourceUnavailableError(
                f"quire source: ledger {ledger_id} is in {target.url} alone, which cannot be read: {error}; "
                "credentials come from the usual chain of the cloud, for the driver and for the executors"
            ) from error
        except OffloadError as error:
            # So says a bucket that can be read. What it means a task judges, by `failOnDataLoss`.
            _log.warning("%s", error)
        self._asked.add(target)
