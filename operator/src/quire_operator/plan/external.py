"""Plans the addresses of brokers outside the cluster. Pure.

A broker reads its address when it starts, so the addresses are there first: brokers that exist get them by a change of
their pods once all are known, and a further broker is created once its own is known. An address that was known stays
known while its Service does not report one.
"""

from dataclasses import dataclass

from quire_operator.api.managed_ledger import ExternalRow
from quire_operator.api.managed_ledger_spec import External, ExternalType
from quire_operator.builders.external import LISTENER_PORTS, client_ports, external_service, listeners_map
from quire_operator.builders.naming import BROKER, ordinal_of, pod_name
from quire_operator.plan.actions import Apply, DeleteChild
from quire_operator.plan.ledger_observation import LedgerObservation, ObservedService


@dataclass(frozen=True, slots=True)
class ExternalPlan:
    """The addresses that are known, and what to do."""

    rows: tuple[ExternalRow, ...] = ()
    known: int | None = None
    """Number of brokers, from the first on, whose address is known. None unless all existing brokers are among them."""
    actions: tuple[Apply | DeleteChild, ...] = ()
    waits: str | None = None
    """What it waits for."""

    @property
    def in_effect(self) -> bool:
        """Every existing broker can have its address."""
        return self.known is not None

    def bounded(self, replicas: int) -> int:
        """Return how many brokers there may be: none is created without its address, and none is removed for it."""
        return replicas if self.known is None else min(replicas, self.known)


def plan_external(observed: LedgerObservation) -> ExternalPlan:
    """Return the plan."""
    wanted = observed.resource.spec.brokers.external
    if wanted is None:
        kept = observed.resource.status.external if observed.services else ()
        return ExternalPlan(kept, actions=tuple(_deletion(one) for one in observed.services))
    there = 0 if observed.stateful_set is None else observed.stateful_set.replicas
    count = max(observed.resource.spec.brokers.replicas, there)
    rows = [row for ordinal in range(count) if (row := _row(observed, wanted, ordinal)) is not None]
    known = next((place for place, row in enumerate(rows) if ordinal_of(row.pod) != place), len(rows))
    surplus = [_deletion(one) for one in observed.services if ordinal_of(one.name) >= count]
    services = [
        Apply(external_service(observed.resource, wanted, ordinal, own_ports=_has_own_ports(observed, ordinal)))
        for ordinal in range(count)
    ]
    name = pod_name(observed.resource.meta.name, BROKER, known)
    return ExternalPlan(
        tuple(rows),
        known if known >= max(1, there) else None,
        (*services, Apply(listeners_map(observed.resource, wanted, rows)), *surplus),
        None if known >= count else f"Service {name} has no address yet",
    )


def _has_own_ports(observed: LedgerObservation, ordinal: int) -> bool:
    """Return whether a broker has ports for clients outside, or has no pod: its next one will have them."""
    name = pod_name(observed.resource.meta.name, BROKER, ordinal)
    pod = next((one for one in observed.pods if one.name == name and not one.deleting), None)
    return pod is None or any(port in pod.ports for port, _ in LISTENER_PORTS.values())


def _deletion(service: ObservedService) -> DeleteChild:
    return DeleteChild("v1", "Service", service.name, service.uid)


def _row(observed: LedgerObservation, wanted: External, ordinal: int) -> ExternalRow | None:
    """Return the address of a broker, or its last known one; None if there never was one."""
    name = pod_name(observed.resource.meta.name, BROKER, ordinal)
    service = next((one for one in observed.services if one.name == name), None)
    rows = observed.resource.status.external
    before = next((row for row in rows if (row.pod, row.type) == (name, wanted.type)), None)
    ports = {} if service is None else _ports(observed, service)
    if wanted.type is ExternalType.LOAD_BALANCER:
        host = None if service is None else service.host
        host = host or (before.host if before is not None else None)
        if host is None:
            return None
    else:
        pod = next((one for one in observed.pods if one.name == name), None)
        host = None if pod is None else pod.node_address
    if not ports:
        return before
    return ExternalRow(
        pod=name, type=wanted.type, host=host, pulsar=ports.get("pulsar"), pulsar_tls=ports.get("pulsar-tls")
    )


def _ports(observed: LedgerObservation, service: ObservedService) -> dict[str, int]:
    """Return the ports by name; empty until each has a number."""
    names = client_ports(observed.resource).keys()
    found = {name: service.ports[name] for name in names if name in service.ports}
    return found if len(found) == len(names) else {}
