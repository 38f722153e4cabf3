"""Checks while planning whether ledgers that exist only in buckets can be read, so that one clear error is reported."""

import logging
from collections.abc import Iterable

from quire_bookie.errors import ConfigError, ObjectStoreError
from quire_broker.errors import OffloadError
from quire_broker.managed_ledger.nodes.offload_context import OffloadContext
from quire_broker.offload.target import OffloadTarget
from quire_broker.offload.tier import Tier
from quire_jobs.errors import JobOptionsError, SourceUnavailableError
from quire_jobs.source.spans import Log

_log = logging.getLogger("quire.jobs.source")


class BucketCheck:
    """Checks each bucket once. Skips ledgers that the bookies still have: a task can read those from the bookies."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._asked: set[OffloadTarget] = set()

    async def of(self, logs: Iterable[Log]) -> None:
        """Raise SourceUnavailableError if a ledger's index cannot be read, JobOptionsError for an unsupported
        location."""
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
        except ObjectStoreError as error:
            raise SourceUnavailableError(
                f"quire source: ledger {ledger_id} is in {target.url} alone, which cannot be read: {error}; "
                "credentials come from the usual chain of the cloud provider, on the driver and on the executors"
            ) from error
        except OffloadError as error:
            # The bucket was readable, but the ledger is not in it. The task decides by `failOnDataLoss`.
            _log.warning("%s", error)
        self._asked.add(target)
