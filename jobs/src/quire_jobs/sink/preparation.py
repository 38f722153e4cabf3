"""Checks the topic before the first row: its partitions, and whether its brokers drop duplicates."""

from typing import Any, Protocol
from urllib.parse import quote

from quire_broker.names import TopicName, parse_topic
from quire_jobs.errors import JobOptionsError, QuireJobError
from quire_jobs.sink.options import Deduplication, SinkOptions

_ENABLED = "Enabled"


class BrokerRequests(Protocol):
    """Sends HTTP requests to the responsible broker."""

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the decoded body."""
        ...


async def prepare(http: BrokerRequests, options: SinkOptions) -> None:
    """Ensure deduplication as the options require it. JobOptionsError: the options require it and it is off."""
    topic = parse_topic(options.topic)
    namespace = f"/admin/v2/namespaces/{topic.namespace}"
    if await _deduplicates(http, topic):
        return
    if options.deduplication is Deduplication.REQUIRE:
        raise JobOptionsError(
            f"quire sink: {topic} does not drop duplicates, so a retried task would write its rows twice: turn it on "
            f"with deduplication = enable (for all of {topic.namespace}), or accept duplicates with deduplication = off"
        )
    await _require_success(http, "POST", f"{namespace}/deduplication", True)
    await _require_success(
        http, "PUT", f"{namespace}/unload"
    )  # a loaded topic reads the setting when it is loaded again
    if not await _deduplicates(http, topic):
        raise QuireJobError(
            f"quire sink: {topic} does not drop duplicates, although deduplication of {topic.namespace} is on"
        )


async def _deduplicates(http: BrokerRequests, topic: TopicName) -> bool:
    """Return whether all partitions drop duplicates. The namespace decides for a topic that does not exist yet."""
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
    return await _require_success(http, "GET", f"/admin/v2/namespaces/{topic.namespace}/deduplication") is True


async def _require_success(http: BrokerRequests, method: str, path: str, body: Any = None) -> Any:
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
