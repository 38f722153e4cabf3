"""Recommends a number of brokers from what each uses of its CPU and network. Pure; it changes nothing.

A broker does its work in one event loop, so one core is its limit; several brokers divide the topics among them.
"""

from quire_operator.api.managed_ledger import BrokerLoad
from quire_operator.api.managed_ledger_spec import BROKERS_MAX
from quire_operator.plan.ledger_observation import LedgerObservation
from quire_operator.plan.operations import rfc3339
from quire_operator.plan.recommending import by_load, is_due


def broker_load(observed: LedgerObservation) -> BrokerLoad | None:
    """Return the recommendation; that of the last minute if it still applies; None if a load is not known."""
    brokers, before = observed.resource.spec.brokers, observed.resource.status.broker_load
    if not brokers.replicas:
        return None
    if not is_due(observed.now_s, before, brokers.replicas):
        return before
    usages = [usage for usage in observed.broker_usages.values() if usage is not None]
    if len(usages) != brokers.replicas:
        return None
    total = 100 * sum(usages)
    found = min(BROKERS_MAX, by_load(total, brokers.target_usage, brokers.replicas))
    average = round(total / brokers.replicas)
    return BrokerLoad(
        recommended=found,
        usage_percent=average,
        replicas=brokers.replicas,
        message=f"each broker uses {average} % of its CPU or network, brokers.targetUsage is {brokers.target_usage}",
        measured_at=rfc3339(observed.now_s),
    )
