"""Defines names, labels and owners of children. A changed name would be a different object, without the data."""

from quire_operator.api import API_VERSION, GROUP
from quire_operator.api.shared import Metadata
from quire_operator.builders import Manifest

FIELD_MANAGER = "quire-operator"
OUR_LABELS = {"app.kubernetes.io/part-of": "quire", "app.kubernetes.io/managed-by": FIELD_MANAGER}
"""Labels of everything that the operator creates for a resource."""
CONFIG_HASH = f"{GROUP}/config-hash"
CREDENTIALS_HASH = f"{GROUP}/credentials-hash"
"""Annotation of a pod: digest of the credentials with which its process was started."""
REVISION_ANNOTATION = f"{GROUP}/revision"
"""Annotation of a broker's pod: its revision, see `broker_revision`."""
ZONE_ANNOTATION = f"{GROUP}/zone"
REPLACE_ANNOTATION = f"{GROUP}/replace"
"""Annotation of a pod by which an administrator declares its volumes lost; any value."""
METADATA_ANNOTATION = f"{GROUP}/metadata"
"""Annotation of a StatefulSet: the metadata store of its pods, as in the spec of a Bookie, as JSON."""
ACCEPT_METADATA_ANNOTATION = f"{GROUP}/accept-metadata"
"""Annotation of a Bookie: an administrator declares that these endpoints, `host:port,...`, are the same cluster."""
CONTAINER = "quire"
MONITORING_VERSION = "monitoring.coreos.com/v1"

RUN_ANNOTATION = f"{GROUP}/run-job"
"""Annotation of a ManagedLedger: jobs that a user wants to run now, `name@time,...`, the time as RFC 3339."""
OWNER_LABEL, JOB_LABEL, SLOT_LABEL = f"{GROUP}/managedledger", f"{GROUP}/job", f"{GROUP}/slot"
"""Labels of runs and all of their pods."""

BOOKIE, BROKER, AUTO_RECOVERY, JOBS, EXTERNAL = "bookie", "broker", "autorecovery", "jobs", "external"
PROXY = "proxy"


def child_name(owner: str, part: str) -> str:
    """Return e.g. `pool-bookie`: children of a Bookie and a ManagedLedger of the same name differ."""
    return f"{owner}-{part}"


def pod_name(owner: str, part: str, ordinal: int) -> str:
    """Return e.g. `pool-bookie-3`."""
    return f"{child_name(owner, part)}-{ordinal}"


def ordinal_of(pod: str) -> int:
    """Return the 3 of `pool-bookie-3`. ValueError if the name does not end in a number."""
    return int(pod.rsplit("-", 1)[-1])


def tls_secret_name(owner: str, part: str) -> str:
    """Return e.g. `pool-bookie-tls`, the Secret with the generated certificate of a part."""
    return f"{child_name(owner, part)}-tls"


def ledger_password_name(owner: str) -> str:
    """Return e.g. `orders-ledger-password`, the Secret with the generated ledger password of a namespace."""
    return f"{owner}-ledger-password"


def selector(owner: str, part: str) -> dict[str, str]:
    """Return the labels that select the pods of a part. Immutable in a StatefulSet, so never add any."""
    return {"app.kubernetes.io/name": f"quire-{part}", "app.kubernetes.io/instance": owner}


def labels(owner: str, part: str) -> dict[str, str]:
    """Return the labels of a child."""
    return selector(owner, part) | OUR_LABELS


def selector_text(owner: str, part: str) -> str:
    """Return the selector in the format of `kubectl -l`."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector(owner, part).items()))


def owner_reference(kind: str, owner: Metadata) -> Manifest:
    """Return the reference by which Kubernetes deletes an object with its owner."""
    return {"apiVersion": API_VERSION, "kind": kind, "name": owner.name, "uid": owner.uid, "controller": True}


def child(kind: str, api_version: str, owner_kind: str, owner: Metadata, part: str) -> Manifest:
    """Return kind and metadata of a child, which Kubernetes deletes with its owner."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": child_name(owner.name, part),
            "namespace": owner.namespace,
            "labels": labels(owner.name, part),
            "ownerReferences": [owner_reference(owner_kind, owner) | {"blockOwnerDeletion": True}],
        },
    }
