"""Finds what a pod template may not request: privileges on the node, or another ServiceAccount. Pure.

The operator creates pods for users who may not create them themselves, so a template must not grant what Kubernetes
would have refused them. The rules are those of the Pod Security level `baseline`; user 0 and other ServiceAccounts are
refused, too. They apply to the merged pod, which includes the effects of `$patch: replace` and null.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.shared import PodTemplate
from quire_operator.builders.merging import merged
from quire_operator.builders.naming import BOOKIE, BROKER, CONTAINER, JOBS, child_name
from quire_operator.builders.pods import container_security, pod_security

_REMEDY = "remove it, or run the operator with --pod-templates any (chart: operator.podTemplates)"
_HOST = ("hostNetwork", "hostPID", "hostIPC")
_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
_PROFILES = ("seccompProfile", "appArmorProfile")
_SELINUX_TYPES = (None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_SPARK_ACCOUNT = "serviceAccountName"
_SPARK_FOLDER = ".volumes.hostPath."


def bookie_template_faults(resource: Bookie) -> list[str]:
    """Return errors of the pod template of bookies; empty if it is allowed."""
    return _faults("podTemplate", resource.spec.pod_template, child_name(resource.meta.name, BOOKIE))


def managed_ledger_template_faults(resource: ManagedLedger) -> list[str]:
    """Return errors of the pod templates of brokers, proxies and jobs, and of equivalent Spark settings."""
    name, spark, proxy = resource.meta.name, resource.spec.spark, resource.spec.proxy
    of_proxies = () if proxy is None else _faults("proxy.podTemplate", proxy.pod_template, child_name(name, BROKER))
    return [
        *_faults("brokers.podTemplate", resource.spec.brokers.pod_template, child_name(name, BROKER)),
        *of_proxies,
        *_faults("spark.podTemplate", spark.pod_template, child_name(name, JOBS)),
        *(
            f"spark.conf: {key} requests privileges that pods are not allowed: {_REMEDY}"
            for key in sorted(spark.conf)
            if key.startswith("spark.kubernetes.") and (_SPARK_FOLDER in key or key.endswith(_SPARK_ACCOUNT))
        ),
    ]


def _faults(field: str, template: PodTemplate, account: str) -> list[str]:
    main = {"name": CONTAINER, "securityContext": container_security()}
    base = {"serviceAccountName": account, "securityContext": pod_security(), "containers": [main]}
    pod = merged(base, template.spec)
    violations = [*_of_pod(pod, account), *_of_annotations(template.metadata.annotations)]
    for kind in _CONTAINERS:
        for container in _maps(pod.get(kind)):
            violations += [
                f"{kind} {container.get('name')}: {violation}" for violation in _of_container(container, pod)
            ]
    return [f"{field}: {violation} is not allowed: {_REMEDY}" for violation in violations]


def _of_pod(pod: Mapping[str, Any], account: str) -> Iterator[str]:
    for key in ("serviceAccountName", "serviceAccount"):
        if pod.get(key) not in (None, "", account):
            yield f"{key} {pod[key]} (the pod's own is {account})"
    for key in _HOST:
        if pod.get(key):
            yield key
    for volume in _maps(pod.get("volumes")):
        if "hostPath" in volume:
            yield f"a hostPath (volume {volume.get('name')})"
    security = _map(pod.get("securityContext"))
    if security.get("sysctls"):
        yield "sysctls"
    yield from _of_both(security)


def _of_container(container: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[str]:
    security = _map(container.get("securityContext"))
    if security.get("privileged"):
        yield "privileged"
    if security.get("allowPrivilegeEscalation"):
        yield "allowPrivilegeEscalation"
    added = _map(security.get("capabilities")).get("add")
    if added:
        yield f"capabilities.add {added}"
    if security.get("procMount") not in (None, "Default"):
        yield f"procMount {security['procMount']}"
    for port in _maps(container.get("ports")):
        if port.get("hostPort"):
            yield f"hostPort {port['hostPort']}"
    yield from _of_both(security)
    of_pod = _map(pod.get("securityContext")).get("runAsNonRoot")
    if security.get("runAsNonRoot", of_pod) is not True:
        yield "a user 0 (runAsNonRoot is not true)"


def _of_both(security: Mapping[str, Any]) -> Iterator[str]:
    """Yield violations that are possible in the security context of both pods and containers."""
    for key in ("runAsUser", "runAsGroup"):
        if security.get(key) is not None and _is_zero(security[key]):
            yield f"{key} 0"
    for key in _PROFILES:
        if _map(security.get(key)).get("type") == "Unconfined":
            yield f"{key} Unconfined"
    options = _map(security.get("seLinuxOptions"))
    if options.get("type") not in _SELINUX_TYPES or options.get("user") or options.get("role"):
        yield "seLinuxOptions"
    if _map(security.get("windowsOptions")).get("hostProcess"):
        yield "windowsOptions.hostProcess"


def _of_annotations(annotations: Mapping[str, str]) -> Iterator[str]:
    for key, value in sorted(annotations.items()):
        if key.startswith("container.apparmor.security.beta.kubernetes.io/") and value == "unconfined":
            yield f"the annotation {key} unconfined"


def _is_zero(value: object) -> bool:
    return value in (0, "0")


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
