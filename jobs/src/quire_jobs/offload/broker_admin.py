"""The three steps of an attempt, asked of the topic's owner over HTTP. Owns no policy.

    POST /admin/v2/persistent/{topic}/offload/begin     {ledgerId, driver, properties, owner} -> {uuid, entries, size}
    POST /admin/v2/persistent/{topic}/offload/complete  {ledgerId, uuid, entries, size}
    POST /admin/v2/persistent/{topic}/offload/abort     {ledgerId, uuid}

They are Quire's own: a stock broker answers 404 or 405, and its topics are refused, since only an owner may change what
the metadata say of a ledger.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from quire_bookie.model import LedgerId
from quire_broker.topic.topic_names import TopicName
from quire_jobs.errors import QuireJobError
from quire_jobs.source.broker_http import BrokerHttp, good, reason_of, topic_path


class AttemptRefusedError(QuireJobError):
    """The broker does not let this ledger be offloaded now; the text is its reason. A later run may find it changed."""


class StockBrokerError(QuireJobError):
    """The topic's broker knows no attempts: it is not Quire's. A retry helps once Quire serves the topic."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a broker has noted: the ledger stays until the attempt ends. `size_bytes` as BookKeeper counts a ledger."""

    uuid: str
    ledger_id: LedgerId
    entries: int
    size_bytes: int


class BrokerAdmin:
    """See the module's text."""

    def __init__(self, brokers: BrokerHttp) -> None:
        self._brokers = brokers

    async def begin(
        self, topic: TopicName, ledger_id: LedgerId, *, driver: str, properties: Mapping[str, str], owner: str
    ) -> Attempt:
        """Have the broker note an attempt, in the place of one that `owner` has left behind.

        AttemptRefusedError with its reason, StockBrokerError; SourceUnavailableError, QuireJobError.
        """
        body = {"ledgerId": ledger_id, "driver": driver, "properties": dict(properties), "owner": owner}
        status, value = await self._brokers.ask("POST", f"{topic_path(topic)}/offload/begin", body)
        reason = reason_of(value)
        if status == 409 or (status == 404 and str(topic) in reason):
            raise AttemptRefusedError(reason)
        if status in (404, 405):
            raise StockBrokerError(
                f"the broker that owns {topic} is not Quire's (it answers {status} to offload/begin), and only an "
                "owner may change a topic's metadata: use that broker's own offloader, or move the topic to Quire"
            )
        found = good(status, value, f"ledger {ledger_id} of {topic}")
        return Attempt(str(found["uuid"]), ledger_id, int(found["entries"]), int(found["size"]))

    async def complete(self, topic: TopicName, attempt: Attempt) -> None:
        """From here on the objects count. A second time for the same attempt is fine.

        AttemptRefusedError: they never will. SourceUnavailableError: it may have happened.
        """
        body = {"ledgerId": attempt.ledger_id, "uuid": attempt.uuid}
        body |= {"entries": attempt.entries, "size": attempt.size_bytes}
        status, value = await self._brokers.ask("POST", f"{topic_path(topic)}/offload/complete", body)
        if status in (404, 409):
            raise AttemptRefusedError(reason_of(value))
        good(status, value, f"ledger {attempt.ledger_id} of {topic}")

    async def abort(self, topic: TopicName, attempt: Attempt) -> bool:
        """Whether the attempt is forgotten now. False: the broker did not say so, it may even be complete."""
        body = {"ledgerId": attempt.ledger_id, "uuid": attempt.uuid}
        status, value = await self._brokers.ask("POST", f"{topic_path(topic)}/offload/abort", body)
        if status in (404, 409):
            return False
        good(status, value, f"ledger {attempt.ledger_id} of {topic}")
        return True
