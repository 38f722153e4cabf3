"""The read-only commands status, under-replicated, ledgers and cursors. Each returns rows for JSON and a text."""

from typing import Any
from urllib.parse import quote

from quire_operator.builders.naming import BROKER
from quire_operator.errors import OperatorError
from quire_operator.kubectl import finding
from quire_operator.kubectl.access import Cluster
from quire_operator.kubectl.explaining import Severity, of_resource
from quire_operator.kubectl.tables import duration, size, table
from quire_operator.kubectl.terminal import on_one_line

LEDGERS_PER_PAGE = 1000
_LEDGERS = "/admin/quire/ledgers"


async def status(cluster: Cluster, *, everywhere: bool) -> tuple[Any, str]:
    """Show all pools and namespaces, each bookie, how many declared objects are ready, and problems."""
    bookies = await finding.resources(cluster, "Bookie", everywhere=everywhere)
    ledgers = await finding.resources(cluster, "ManagedLedger", everywhere=everywhere)
    if not bookies and not ledgers:
        where = "in any namespace" if everywhere else f"in namespace {cluster.namespace}; -A searches all namespaces"
        return {"bookies": [], "managedLedgers": []}, f"no Bookie or ManagedLedger {where}"
    declared = await finding.declared_resources(cluster, everywhere=everywhere)
    every = [*bookies, *ledgers, *declared]
    parts = [_pools(bookies), _bookies(bookies), _namespaces(ledgers), _declared(declared), _wrong(every)]
    rows = {
        "bookies": [_brief(one) for one in bookies],
        "managedLedgers": [_brief(one) for one in ledgers],
        "declared": [{"kind": one["kind"]} | _brief(one) for one in declared],
    }
    return rows, "\n\n".join(part for part in parts if part)


def _brief(one: Any) -> dict[str, Any]:
    reasons = [reason.row() for reason in of_resource(one, ()) if reason.severity is not Severity.NOTE]
    name = {key: one["metadata"][key] for key in ("namespace", "name")}
    return name | {"status": one.get("status") or {}, "findings": reasons}


def _name(one: Any) -> str:
    return f"{one['metadata']['namespace']}/{one['metadata']['name']}"


def _pools(found: list[Any]) -> str:
    rows = []
    for one in found:
        at = one.get("status") or {}
        capacity, lacking = at.get("capacity") or {}, at.get("underReplicated") or {}
        operation = at.get("operation") or {}
        used = f"{capacity['usedPercent']} % of {size(capacity.get('total'))}" if capacity.get("total") else None
        under_way = f"{operation['type']}/{operation['step']}" if operation else None
        rows.append(
            (
                *(_name(one), at.get("phase"), f"{at.get('ready', 0)}/{one['spec'].get('replicas', '?')}"),
                *(at.get("writable"), used, lacking.get("count"), at.get("unrecoverable"), under_way),
            )
        )
    headers = ("BOOKIE", "PHASE", "READY", "WRITABLE", "USED", "UNDER-REPLICATED", "UNRECOVERABLE", "OPERATION")
    return table(headers, rows) if rows else ""


def _bookies(found: list[Any]) -> str:
    rows = []
    for one in found:
        for row in (one.get("status") or {}).get("bookies", ()):
            drain = row.get("drain") or {}
            left = f"{drain['remaining']} ledgers, {duration(drain.get('etaSeconds')) or '?'}" if drain else None
            used = None if row.get("usedPercent") is None else f"{row['usedPercent']} %"
            place = (row.get("node"), row.get("zone"))
            rows.append((row["pod"], row.get("id"), row.get("state"), used, *place, left, row.get("reason")))
    return table(("POD", "ID", "STATE", "USED", "NODE", "ZONE", "DRAIN", "REASON"), rows) if rows else ""


def _namespaces(found: list[Any]) -> str:
    rows = []
    for one in found:
        at = one.get("status") or {}
        namespace = one["spec"].get("namespace")
        ready = f"{at.get('ready', 0)}/{at.get('replicas', 0)}"
        rows.append((_name(one), namespace, at.get("state"), ready, at.get("topicCount"), at.get("backlog")))
    headers = ("MANAGEDLEDGER", "NAMESPACE", "STATE", "BROKERS", "TOPICS", "BACKLOG")
    return table(headers, rows) if rows else ""


def _declared(found: list[Any]) -> str:
    """Return a row for each kind: there may be hundreds of topics, and problems have a line each."""
    rows = []
    for kind in sorted({one["kind"] for one in found}):
        ready = [_truth(one, "Ready") for one in found if one["kind"] == kind]
        rows.append((kind, len(ready), ready.count("True"), ready.count("Unknown")))
    return table(("KIND", "RESOURCES", "READY", "UNKNOWN"), rows) if rows else ""


def _truth(one: Any, about: str) -> str | None:
    conditions = (one.get("status") or {}).get("conditions") or ()
    return next((str(each["status"]) for each in conditions if each["type"] == about), None)


def _wrong(found: list[Any]) -> str:
    lines = [
        on_one_line(f"{_name(one)}: {reason.what}")
        for one in found
        for reason in of_resource(one, ())
        if reason.severity is not Severity.NOTE
    ]
    return "\n".join(lines) if lines else "no problems found"


async def under_replicated(cluster: Cluster) -> tuple[Any, str]:
    """List under-replicated ledgers, and those that could not be restored."""
    path = "/api/v1/autorecovery/list_under_replicated_ledger?print_missing_replica=true"
    said = await finding.ask_cluster(cluster, path)
    marked: dict[str, list[str]] = {} if said.status == 404 else finding.expect(said)
    lost = finding.expect(await finding.ask_cluster(cluster, "/api/v1/quire/unrecoverable"))
    rows = {"underReplicated": marked, "unrecoverable": lost}
    parts = []
    if marked:
        cells = [(ledger, ", ".join(bookies) or "created with too few copies") for ledger, bookies in marked.items()]
        parts.append(table(("LEDGER", "MISSING REPLICA ON"), cells))
    if lost:
        parts.append(
            table(("UNRECOVERABLE", "ATTEMPTS", "REASON"), [(e["ledger"], e["attempts"], e["reason"]) for e in lost])
        )
    return rows, "\n\n".join(parts) or "no ledger is under-replicated"


async def ledgers(cluster: Cluster, limit: int) -> tuple[Any, str]:
    """List ledgers by id, with their bookies."""
    found: list[Any] = []
    after: int | None = -1
    while after is not None and len(found) < limit:
        count = min(LEDGERS_PER_PAGE, limit - len(found))
        page = finding.expect(await finding.ask_cluster(cluster, f"{_LEDGERS}?after={after}&limit={count}"))
        found += page["ledgers"]
        after = page["next"]
    rows = [
        (
            *(one["ledgerId"], one["state"], f"{one['ensembleSize']}/{one['writeQuorum']}/{one['ackQuorum']}"),
            *(one["entries"], size(one["length"]), _owner(one)),
            ", ".join(one["segments"][-1]["ensemble"]) if one["segments"] else None,
        )
        for one in found
    ]
    headers = ("LEDGER", "STATE", "E/QW/QA", "ENTRIES", "SIZE", "OWNER", "BOOKIES")
    return found, table(headers, rows) if rows else "no ledgers"


def _owner(one: Any) -> str | None:
    custom = one.get("custom") or {}
    owner = custom.get("pulsar/managed-ledger") or custom.get("application")
    return f"{owner} cursor {custom['pulsar/cursor']}" if "pulsar/cursor" in custom else owner


def topic_path(topic: str) -> str:
    """Return the admin path of `tenant/namespace/topic`, with or without `persistent://`. Raises OperatorError."""
    parts = topic.removeprefix("persistent://").split("/")
    if len(parts) != 3 or not all(parts):
        raise OperatorError(f"{topic}: not a topic name; use persistent://tenant/namespace/topic")
    return "/admin/v2/persistent/" + "/".join(quote(part, safe="") for part in parts)


async def ask_topic(cluster: Cluster, topic: str, what: str) -> Any:
    """Return statistics from the topic's broker, skipping brokers that do not own it. Raises OperatorError."""
    path = f"{topic_path(topic)}/{what}"
    said: list[str] = []
    for one in await finding.pods(cluster, BROKER):
        if not finding.is_ready(one):
            continue
        answer = await cluster.ask_pod(one, path)
        if answer.status == 200:
            return answer.body
        said.append(finding.reason_of(answer))
    raise OperatorError(f"{topic}: " + ("; ".join(dict.fromkeys(said)) or f"no broker is ready in {cluster.namespace}"))


async def cursors(cluster: Cluster, topic: str) -> tuple[Any, str]:
    """List the cursors of a topic with their positions."""
    stats, internal = await ask_topic(cluster, topic, "stats"), await ask_topic(cluster, topic, "internalStats")
    rows = []
    for name, cursor in sorted((internal.get("cursors") or {}).items()):
        subscription = (stats.get("subscriptions") or {}).get(name, {})
        rows.append(
            (
                *(name, subscription.get("type"), cursor.get("markDeletePosition"), cursor.get("readPosition")),
                *(subscription.get("msgBacklog"), subscription.get("unackedMessages")),
                len(subscription.get("consumers", ())),
            )
        )
    headers = ("CURSOR", "TYPE", "MARK-DELETE", "READ", "BACKLOG", "UNACKED", "CONSUMERS")
    text = f"last position {internal.get('lastConfirmedEntry', '-')}\n"
    return internal.get("cursors") or {}, text + (table(headers, rows) if rows else "no cursors")
