"""Requests the three steps of an attempt from the topic's owner over HTTP. Owns no policy.

    POST /admin/v2/persistent/{topic}/offload/begin     {ledgerId, driver, properties, owner} -> {uuid, entries, size}
    POST /admin/v2/persistent/{topic}/offload/complete  {ledgerId, uuid, entries, size}
    POST /admin/v2/persistent/{topic}/offload/abort     {ledgerId, uuid}

These endpoints exist only in Quire. A stock broker responds with 404 or 405, and its topics are rejected, because only
the owner may change the metadata of a ledger.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from quire_bookie.model import LedgerId
from quire_broker.names import TopicName
from quire_jobs.errors import QuireJobError
from quire_jobs.source.broker_http import BrokerHttp, reason_of, require_success, topic_path


class AttemptRefusedError(QuireJobError):
    """The broker refuses to have this ledger offloaded now; the text is its reason. A later run may succeed."""


class StockBrokerError(QuireJobError):
    """The topic's broker does not support attempts: it is not Quire's. A retry helps once Quire serves the topic."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that a broker has recorded; it keeps the ledger until the end of it. `size_bytes`: as BookKeeper
    counts."""

    uuid: str
    ledger_id: LedgerId
    entries: int
    size_bytes: int


class BrokerAdmin:
    """Sends the requests; see the module's docstring."""

    def __init__(self, brokers: BrokerHttp) -> None:
        self._brokers = brokers

    async def begin(
        self, topic: TopicName, ledger_id: LedgerId, *, driver: str, properties: Mapping[str, str], owner: str
    ) -> Attempt:
        """Have the broker record an attempt, replacing an unfinished one of the same `owner`.

        Raises AttemptRefusedError with its reason, StockBrokerError, SourceUnavailableError, QuireJobError.
        """
        body = {"ledgerId": ledger_id, "driver": driver, "properties": dict(properties), "owner": owner}
        status, value = await self._brokers.ask("POST", f"{topic_path(topic)}/offload/begin", body)
        reason = reason_of(value)
        if status == 409 or (status == 404 and str(topic) in reason):
            raise AttemptRefusedError(reason)
        if status in (404, 405):
            raise StockBrokerError(
                f"the broker that owns {topic} is not Quire's (it responds with {status} to offload/begin), and only "
                "the owner may change a topic's metadata: use that broker's own offloader, or move the topic to Quire"
            )
        found = require_success(status, value, f"ledger {ledger_id} of {topic}")
        return Attempt(str(found["uuid"]), ledger_id, int(found["entries"]), int(found["size"]))

    async def complete(self, topic: TopicName, attempt: Attempt) -> None:
        """Have the broker list the objects as the ledger's copy. A repetition for the same attempt has no effect.

        AttemptRefusedError: the objects will never be used. SourceUnavailableError: the outcome is unknown.
        """
        body = {"ledgerId": attempt.ledger_id, "uuid": attempt.uuid}
        body |= {"entries": attempt.entries, "size": attempt.size_bytes}
        status, value = await self._brokers.ask("POST", f"{topic_path(topic)}/offload/complete", body)
        if status in (404, 409):
            raise AttemptRefusedError(reason_of(value))
        require_success(status, value, f"ledger {attempt.ledger_id} of {topic}")

    async def abort(self, topic: TopicName, attempt: Attempt) -> bool:
        """Abort the attempt. Return whether the broker dropped it; otherwise the attempt may even be complete."""
        body = {"ledgerId": attempt.ledger_id, "uuid": attempt.uuid}
        status, value = await self._brokers.ask("POST", f"{topic_path(topic)}/offload/abort", body)
        if status in (404, 409):
            return False
        require_success(status, value, f"ledger {attempt.ledger_id} of {topic}")
        return True
