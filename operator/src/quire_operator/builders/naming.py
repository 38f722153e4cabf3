"""Names, labels and owners of children, in one place: a changed name would make another object, without its data."""

from quire_operator.api import API_VERSION, GROUP
from quire_operator.api.shared import Metadata
from quire_operator.builders import Manifest

FIELD_MANAGER = "quire-operator"
CONFIG_HASH = f"{GROUP}/config-hash"
CREDENTIALS_HASH = f"{GROUP}/credentials-hash"
"""Of a pod: a digest of the credentials that its process was started with."""
ZONE_ANNOTATION = f"{GROUP}/zone"
REPLACE_ANNOTATION = f"{GROUP}/replace"
"""Of a pod: a person's word that its volumes are lost; any value."""
CONTAINER = "quire"
MONITORING_VERSION = "monitoring.coreos.com/v1"

RUN_ANNOTATION = f"{GROUP}/run-job"
"""Of a ManagedLedger: jobs that a person wants to run now, `name@time,...`, the time as RFC 3339."""
OWNER_LABEL, JOB_LABEL, SLOT_LABEL = f"{GROUP}/managedledger", f"{GROUP}/job", f"{GROUP}/slot"
"""Of runs and all of their pods."""

BOOKIE, BROKER, AUTO_RECOVERY, JOBS = "bookie", "broker", "autorecovery", "jobs"


def child_name(owner: str, part: str) -> str:
    """`pool-bookie`: a Bookie and a ManagedLedger of one name never meet."""
    return f"{owner}-{part}"


def pod_name(owner: str, part: str, ordinal: int) -> str:
    """`pool-bookie-3`."""
    return f"{child_name(owner, part)}-{ordinal}"


def ordinal_of(pod: str) -> int:
    """3 of `pool-bookie-3`. ValueError when the name ends in no number."""
    return int(pod.rsplit("-", 1)[-1])


def tls_secret_name(owner: str, part: str) -> str:
    """`pool-bookie-tls`: the certificates that the operator makes for a part."""
    return f"{child_name(owner, part)}-tls"


def ledger_password_name(owner: str) -> str:
    """`orders-ledger-password`: the Secret that the operator makes for the ledgers of a namespace."""
    return f"{owner}-ledger-password"


def selector(owner: str, part: str) -> dict[str, str]:
    """What the pods of a part are found by; immutable for a StatefulSet, so nothing may ever be added."""
    return {"app.kubernetes.io/name": f"quire-{part}", "app.kubernetes.io/instance": owner}


def labels(owner: str, part: str) -> dict[str, str]:
    """Labels of a child."""
    return selector(owner, part) | {"app.kubernetes.io/part-of": "quire", "app.kubernetes.io/managed-by": FIELD_MANAGER}


def selector_text(owner: str, part: str) -> str:
    """The selector as `kubectl -l` takes it."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector(owner, part).items()))


def child(kind: str, api_version: str, owner_kind: str, owner: Metadata, part: str) -> Manifest:
    """The head of a child: it is deleted with its owner, by Kubernetes."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": child_name(owner.name, part),
            "namespace": owner.namespace,
            "labels": labels(owner.name, part),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": owner_kind,
                    "name": owner.name,
                    "uid": owner.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
    }
