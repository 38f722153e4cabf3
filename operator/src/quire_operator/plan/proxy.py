"""Plans the proxies of a ManagedLedger and reports them. Pure."""

from dataclasses import dataclass

from quire_operator.api.conditions import Finding
from quire_operator.api.managed_ledger import ProxyStatus
from quire_operator.api.quantities import duration_s
from quire_operator.builders.proxy import proxy_children, proxy_url
from quire_operator.plan.actions import Apply, DeleteChild
from quire_operator.plan.bookie_conditions import finding
from quire_operator.plan.ledger_observation import LedgerObservation
from quire_operator.plan.operations import seconds_of
from quire_operator.plan.rejections import blocked

AWAY = "ProxiesAway"


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxies as observed, beside what the spec declares."""

    declared: int
    ready: int
    away_s: float | None = None
    """For how long fewer than declared were ready; None if all are, or if it is not known."""
    reason: str = ""
    """Why a pod is not ready, if Kubernetes says it."""

    @property
    def lacking(self) -> str | None:
        """How many are missing, and why; None if all of them are ready."""
        if self.ready >= self.declared:
            return None
        return ": ".join(filter(None, [f"{self.ready} of {self.declared} proxies are ready", self.reason]))


def plan_proxy(observed: LedgerObservation, default_image: str) -> list[Apply | DeleteChild]:
    """Return the proxies to apply, and objects of proxies that are no longer declared."""
    resource, proxy = observed.resource, observed.resource.spec.proxy
    if proxy is None or observed.pool is None:
        return list(observed.unwanted_of_proxy)
    zones = observed.pool.spec.placement.topology_keys
    return [Apply(child) for child in proxy_children(resource, proxy, default_image, zones, observed.pod_monitors)]


def proxies(observed: LedgerObservation) -> Proxies | None:
    """Return the state of the declared proxies; None if none are declared."""
    proxy, there = observed.resource.spec.proxy, observed.proxy
    if proxy is None:
        return None
    if there is None:
        return Proxies(proxy.replicas, 0)
    since = there.unavailable_since
    ready = min(there.ready, there.updated) if there.current else 0
    away_s = None if since is None else observed.now_s - seconds_of(since)
    return Proxies(proxy.replicas, ready, away_s, there.rejected_pod or blocked(there.pods).message)


def proxy_status(observed: LedgerObservation) -> ProxyStatus | None:
    """Return the proxies in the status; it stays until the objects of former ones are deleted."""
    resource, there = observed.resource, observed.proxy
    if resource.spec.proxy is None:
        return resource.status.proxy if observed.unwanted_of_proxy else None
    url = proxy_url(resource, resource.spec.proxy)
    if there is None:
        return ProxyStatus(service_url=url)
    return ProxyStatus(service_url=url, replicas=there.replicas, ready=there.ready)


def proxy_findings(observed: LedgerObservation) -> list[Finding]:
    """Return the condition `ProxyReady`; none without proxies."""
    found = proxies(observed)
    if found is None:
        return []
    lacking = found.lacking
    return [finding("ProxyReady", lacking is None, "AllReady", "ProxiesNotReady", lacking or "")]


def proxy_problem(observed: LedgerObservation) -> tuple[str, str] | None:
    """Return why the resource is degraded by its proxies: some were not ready for longer than a broker may take."""
    found, within = proxies(observed), observed.resource.spec.brokers.rollout.ready_within
    if found is None or found.lacking is None or found.away_s is None or found.away_s <= duration_s(within):
        return None
    return AWAY, f"for more than {within}: {found.lacking}"
