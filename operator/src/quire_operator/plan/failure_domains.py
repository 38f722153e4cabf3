"""Tells the brokers' load balancing in which zone each broker runs, as failure domains of the cluster. Pure.

Domains are named after zones. Only our own brokers are added and removed: other ManagedLedgers of the cluster, and
administrators, have theirs in the same domains.
"""

import re

from quire_operator.builders.broker import broker_host, broker_hosts
from quire_operator.builders.settings import broker_ports
from quire_operator.plan.actions import SetFailureDomain
from quire_operator.plan.ledger_observation import LedgerObservation


def failure_domains(observed: LedgerObservation) -> list[SetFailureDomain]:
    """Return the domains that differ from the zones of the pods. A broker whose zone is not known stays where it is."""
    if observed.failure_domains is None:
        return []
    meta, ports = observed.resource.meta, broker_ports(observed.resource.spec.brokers)
    port = ports.get("http") or ports["https"]
    zones = {f"{broker_host(meta, pod.name)}:{port}": pod.zone for pod in observed.pods}
    ours = re.compile(broker_hosts(observed.resource) + ":[0-9]+")
    found = []
    for name in sorted({zone for zone in zones.values() if zone} | observed.failure_domains.keys()):
        there = observed.failure_domains.get(name, ())
        stay = [one for one in there if not ours.fullmatch(one) or (one in zones and zones[one] is None)]
        wanted = tuple(sorted({*stay, *(one for one, zone in zones.items() if zone == name)}))
        if wanted != tuple(sorted(there)):
            found.append(SetFailureDomain(name, wanted))
    return found
