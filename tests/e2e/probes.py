"""Pods that try to connect to ports of other pods: shows which clients NetworkPolicies let in."""

import json

from tests.e2e.kube import Cluster, Manifest, is_ready, until
from tests.e2e.release import kubectl

Port = tuple[str, str]
"""A pod's name and the name of a port of it."""
READY_S = 120
PORT = 8080
CONNECT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor

def opens(target):
    try:
        socket.create_connection(tuple(target), 3).close()
    except OSError:
        return False
    return True

targets = json.loads(sys.argv[1])
with ThreadPoolExecutor(len(targets)) as workers:
    print(json.dumps(list(workers.map(opens, targets))))
"""
"""Connects to every address that is not silent for three seconds, all at once."""


def client(name: str, labels: dict[str, str]) -> Manifest:
    """Return a pod that can connect, and serves a port itself."""
    container = {
        "name": "probe",
        "image": "quire-e2e:1",
        "command": ["python", "-m", "http.server", str(PORT)],
        "ports": [{"name": "web", "containerPort": PORT}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "probe"} | labels},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }


def wait(cluster: Cluster, name: str) -> None:
    """Wait until a pod is ready."""
    until(f"{name} is ready", lambda: is_ready(cluster.get("v1", "Pod", name) or {}), READY_S)


def addresses(pods: list[Manifest]) -> dict[Port, tuple[str, int]]:
    """Return the addresses of all declared ports of pods."""
    return {
        (pod["metadata"]["name"], port["name"]): (pod["status"]["podIP"], port["containerPort"])
        for pod in pods
        for container in pod["spec"]["containers"]
        for port in container.get("ports", ())
    }


def opened(cluster: Cluster, pod: str, targets: dict[Port, tuple[str, int]]) -> set[Port]:
    """Return the targets to which a pod can connect. The pod's image must have Python."""
    said = kubectl(cluster, "exec", pod, "--", "python", "-c", CONNECT, json.dumps(list(targets.values())))
    return {port for port, is_open in zip(targets, json.loads(said), strict=True) if is_open}
