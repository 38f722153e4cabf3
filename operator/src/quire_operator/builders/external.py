"""Builds what gives each broker an address outside the cluster: a Service, and the ConfigMap of all listeners. Pure.

A broker reads the key of its pod from the mounted ConfigMap when it starts (`advertisedListenersFile`).
"""

from collections.abc import Iterable

from quire_operator.api.managed_ledger import ExternalRow, ManagedLedger
from quire_operator.api.managed_ledger_spec import External, ExternalType
from quire_operator.builders import Manifest
from quire_operator.builders.naming import BROKER, EXTERNAL, child, child_name, pod_name, selector
from quire_operator.builders.pods import with_volume
from quire_operator.builders.settings import broker_ports

FOLDER = "/etc/quire/external"
POD_LABEL = "statefulset.kubernetes.io/pod-name"
NODE_IP = "NODE_IP"
"""Variable of a broker: the address of its node."""
_SCHEMES = {"pulsar": "pulsar", "pulsar-tls": "pulsar+ssl"}


def client_ports(resource: ManagedLedger) -> dict[str, int]:
    """Return the ports of the Pulsar protocol by name."""
    return {name: port for name, port in broker_ports(resource.spec.brokers).items() if name in _SCHEMES}


def external_service(resource: ManagedLedger, wanted: External, ordinal: int) -> Manifest:
    """Return the Service of one broker; it also covers one that is not ready, as lookups have named it."""
    meta = resource.meta
    pod = pod_name(meta.name, BROKER, ordinal)
    found = child("Service", "v1", "ManagedLedger", meta, EXTERNAL)
    found["metadata"] = found["metadata"] | {"name": pod}
    if wanted.annotations:
        found["metadata"] = found["metadata"] | {"annotations": dict(wanted.annotations)}
    ports = [{"name": name, "port": port, "targetPort": name} for name, port in client_ports(resource).items()]
    return found | {
        "spec": {
            "type": wanted.type.value,
            "publishNotReadyAddresses": True,
            "selector": selector(meta.name, BROKER) | {POD_LABEL: pod},
            "ports": ports,
        }
    }


def listeners_map(resource: ManagedLedger, wanted: External, rows: Iterable[ExternalRow]) -> Manifest:
    """Return the ConfigMap with the listeners of each broker by its pod."""
    found = child("ConfigMap", "v1", "ManagedLedger", resource.meta, EXTERNAL)
    return found | {"data": {row.pod: _listeners(wanted, row) for row in rows}}


def _listeners(wanted: External, row: ExternalRow) -> str:
    """Return the listeners of one broker. A pod may move to another node, so its node is a variable."""
    host = f"$({NODE_IP})" if wanted.type is ExternalType.NODE_PORT else str(row.host)
    host = f"[{host}]" if ":" in host else host
    ports = {"pulsar": row.pulsar, "pulsar-tls": row.pulsar_tls}
    return ",".join(
        f"{wanted.listener_name}:{_SCHEMES[name]}://{host}:{port}" for name, port in ports.items() if port is not None
    )


def with_listeners(pod: Manifest, owner: str) -> Manifest:
    """Mount the ConfigMap and let the broker read its key."""
    pod = with_volume(pod, EXTERNAL, FOLDER, {"configMap": {"name": child_name(owner, EXTERNAL)}})
    main = pod["containers"][0]
    arguments = [*main["args"], "--set", f"advertisedListenersFile={FOLDER}/$(POD_NAME)"]
    variables = [*main["env"], {"name": NODE_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}]
    return pod | {"containers": [main | {"args": arguments, "env": variables}]}
