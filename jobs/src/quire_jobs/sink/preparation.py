"""Before the first row: is the topic there, how many partitions has it, do its brokers drop duplicates?"""

from typing import Any, Protocol
from urllib.parse import quote

from quire_broker.topic.topic_names import TopicName, parse_topic
from quire_jobs.errors import JobOptionsError, QuireJobError
from quire_jobs.sink.options import Deduplication, SinkOptions

_ENABLED = "Enabled"


class BrokerRequests(Protocol):
    """HTTP to whichever broker is responsible."""

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and decoded body."""
        ...


async def prepare(http: BrokerRequests, options: SinkOptions) -> None:
    """See to deduplication as the options want it. JobOptionsError: it is off and was to be on."""
    topic = parse_topic(options.topic)
    namespace = f"/admin/v2/namespaces/{topic.namespace}"
    if await _deduplicates(http, topic):
        return
    if options.deduplication is Deduplication.REQUIRE:
        raise JobOptionsError(
            f"quire sink: {topic} does not drop duplicates: a retried task would write its rows twice. Turn it on "
            f"with deduplication = enable (for all of {topic.namespace}), or accept them with deduplication = off"
        )
    await _good(http, "POST", f"{namespace}/deduplication", True)
    await _good(http, "PUT", f"{namespace}/unload")  # topics that are loaded look at it when they are loaded again
    if not await _deduplicates(http, topic):
        raise QuireJobError(f"quire sink: {topic} does not drop duplicates although {topic.namespace} now says so")


async def _deduplicates(http: BrokerRequests, topic: TopicName) -> bool:
    """Whether it does, in every partition. A topic that is not there yet will do as its namespace says."""
    status, found = await http.ask("GET", f"{_path(topic)}/partitions")
    count = int(found.get("partitions", 0)) if status == 200 and isinstance(found, dict) else 0
    seen = []
    for each in [topic.partition_of(index) for index in range(count)] or [topic]:
        status, stats = await http.ask("GET", f"{_path(each)}/stats")
        if status == 404:
            seen.append(await _namespace_says(http, topic))
        elif status >= 300:
            raise _refusal("GET", f"{_path(each)}/stats", status, stats)
        else:
            seen.append(stats.get("deduplicationStatus") == _ENABLED)
    return all(seen)


async def _namespace_says(http: BrokerRequests, topic: TopicName) -> bool:
    return await _good(http, "GET", f"/admin/v2/namespaces/{topic.namespace}/deduplication") is True


async def _good(http: BrokerRequests, method: str, path: str, body: Any = None) -> Any:
    status, found = await http.ask(method, path, body)
    if status >= 300:
        raise _refusal(method, path, status, found)
    return found


def _refusal(method: str, path: str, status: int, found: Any) -> QuireJobError:
    reason = found.get("reason", found) if isinstance(found, dict) else found
    return QuireJobError(f"quire sink: {method} {path}: HTTP {status}: {reason}")


def _path(topic: TopicName) -> str:
    parts = (topic.namespace.tenant, topic.namespace.namespace, topic.local)
    return f"/admin/v2/{topic.domain}/" + "/".join(quote(part, safe="") for part in parts)
