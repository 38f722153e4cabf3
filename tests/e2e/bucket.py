"""A real S3 server on the cluster, versitygw over a folder, and access to that folder. Manifests as plain data."""

import os
from typing import Any

from tests.e2e.kube import Cluster
from tests.e2e.release import kubectl
from tests.e2e.stack import Stack

Manifest = dict[str, Any]
NAME, PORT = "s3", 7070
CREDENTIALS, WRONG_CREDENTIALS = "bucket-access", "bucket-wrong"
LEDGERS, REPORTS, BACKUPS = "quire-ledgers", "quire-reports", "quire-backups"
REGION = "us-east-1"
_KEY, _SECRET = "quire", "only-of-this-test"
_DATA, _STATE = "/data/buckets", "/data/state"


def image() -> str:
    """Return the image's name as images/build.sh tags it."""
    return "quire-e2e-s3:" + os.environ.get("VERSITYGW_VERSION", "v1.8.0")


def endpoint(where: str) -> str:
    """Return the URL for pods. `where`: the server's namespace."""
    return f"http://{NAME}.{where}.svc:{PORT}"


def access(where: str) -> dict[str, str]:
    """Return the environment variables of a process that uses the server."""
    keys = {"AWS_ACCESS_KEY_ID": _KEY, "AWS_SECRET_ACCESS_KEY": _SECRET}
    return keys | {"AWS_ENDPOINT_URL": endpoint(where), "AWS_REGION": REGION}


def serve(stack: Stack) -> None:
    """Start the server in the stack's namespace; a running one keeps its objects."""
    stack.cluster.apply(*objects())
    stack.wait_for_pods(f"app={NAME}", 1, 180)


def objects() -> list[Manifest]:
    """Return the Pod, the Service, and Secrets with right and wrong keys."""
    volume = [{"name": "data", "mountPath": "/data"}]
    looking = {"image": "quire-e2e:1", "volumeMounts": volume}
    server = {
        "name": "s3",
        "image": image(),
        "args": ["--port", f":{PORT}", "posix", "--sidecar", _STATE, _DATA],
        "env": [{"name": "ROOT_ACCESS_KEY", "value": _KEY}, {"name": "ROOT_SECRET_KEY", "value": _SECRET}],
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "volumeMounts": volume,
    }
    pod = {
        "terminationGracePeriodSeconds": 1,
        "initContainers": [
            {
                **looking,
                "name": "folders",
                "command": ["mkdir", "-p", _STATE, *(f"{_DATA}/{name}" for name in (LEDGERS, REPORTS, BACKUPS))],
            }
        ],
        "containers": [server, {**looking, "name": "look", "command": ["sleep", "infinity"]}],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    head = {"apiVersion": "v1", "metadata": {"name": NAME, "labels": {"app": NAME}}}
    right = {"AWS_ACCESS_KEY_ID": _KEY, "AWS_SECRET_ACCESS_KEY": _SECRET}
    secrets = {CREDENTIALS: right, WRONG_CREDENTIALS: right | {"AWS_SECRET_ACCESS_KEY": "of-somebody-else"}}
    return [
        *(
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}
            for name, data in secrets.items()
        ),
        {**head, "kind": "Service", "spec": {"selector": {"app": NAME}, "ports": [{"port": PORT}]}},
        {**head, "kind": "Pod", "spec": pod},
    ]


def names(cluster: Cluster, bucket: str) -> list[str]:
    """Return the names of all objects."""
    said = kubectl(cluster, "exec", NAME, "-c", "look", "--", "find", f"{_DATA}/{bucket}", "-type", "f")
    return sorted(line.removeprefix(f"{_DATA}/{bucket}/") for line in said.splitlines() if "/.sgwtmp/" not in line)


def content(cluster: Cluster, bucket: str, name: str) -> str:
    """Return the content of an object."""
    return kubectl(cluster, "exec", NAME, "-c", "look", "--", "cat", f"{_DATA}/{bucket}/{name}")
