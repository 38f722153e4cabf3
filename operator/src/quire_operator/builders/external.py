"""Builds what gives each broker an address outside the cluster: a Service, and the ConfigMap of all listeners. Pure.

A broker reads the key of its pod from the mounted ConfigMap when it starts (`advertisedListenersFile`). Its clients
outside have ports of their own (`bindAddresses`), so that it knows which address of another broker they reach.
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
LISTENER_PORTS = {"pulsar": ("ext-pulsar", 6660), "pulsar-tls": ("ext-pulsar-tls", 6661)}
"""Name and number of the port for clients outside, by the port for clients inside."""


def client_ports(resource: ManagedLedger) -> dict[str, int]:
    """Return the ports of the Pulsar protocol by name."""
    return {name: port for name, port in broker_ports(resource.spec.brokers).items() if name in _SCHEMES}


def external_service(resource: ManagedLedger, wanted: External, ordinal: int, *, own_ports: bool) -> Manifest:
    """Return the Service of one broker; it also covers one that is not ready, as lookups have named it.

    `own_ports`: the broker has ports for clients outside; one that was started before has only those for all clients.
    """
    meta = resource.meta
    pod = pod_name(meta.name, BROKER, ordinal)
    found = child("Service", "v1", "ManagedLedger", meta, EXTERNAL)
    found["metadata"] = found["metadata"] | {"name": pod}
    if wanted.annotations:
        found["metadata"] = found["metadata"] | {"annotations": dict(wanted.annotations)}
    targets = {name: LISTENER_PORTS[name][0] if own_ports else name for name in _SCHEMES}
    ports = [{"name": name, "port": port, "targetPort": targets[name]} for name, port in client_ports(resource).items()]
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


def with_listeners(pod: Manifest, resource: ManagedLedger, wanted: External) -> Manifest:
    """Mount the ConfigMap, let the broker read its key, and give it ports for clients outside."""
    pod = with_volume(pod, EXTERNAL, FOLDER, {"configMap": {"name": child_name(resource.meta.name, EXTERNAL)}})
    main = pod["containers"][0]
    own = {_SCHEMES[name]: LISTENER_PORTS[name] for name in client_ports(resource)}
    bound = ",".join(f"{wanted.listener_name}:{scheme}://0.0.0.0:{port}" for scheme, (_, port) in own.items())
    arguments = [*main["args"], "--set", f"advertisedListenersFile={FOLDER}/$(POD_NAME)"]
    arguments += ["--set", f"bindAddresses={bound}"]
    ports = [*main["ports"], *({"name": name, "containerPort": port} for name, port in own.values())]
    variables = [*main["env"], {"name": NODE_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}]
    return pod | {"containers": [main | {"args": arguments, "env": variables, "ports": ports}]}
