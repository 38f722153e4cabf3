"""Builds the children of a `Bookie` for auto-recovery: a Deployment and its configuration. Pure."""

from quire_operator.api.bookie import Bookie
from quire_operator.api.shared import PodTemplate
from quire_operator.builders import Manifest
from quire_operator.builders.bookie import CONFIG_HEAD, https_secret, pod_monitor
from quire_operator.builders.naming import AUTO_RECOVERY, BOOKIE, child, child_name, selector
from quire_operator.builders.pods import (
    CONFIG_FILE,
    container,
    pod_spec,
    pod_template,
    spread,
    with_pool_tokens,
    with_priority,
    with_secrets,
)
from quire_operator.builders.settings import (
    BOOKIE_TOKEN,
    RECOVERY_HTTP_PORT,
    TOKEN_KEY,
    is_https_only,
    recovery_settings,
)
from quire_operator.builders.sizing import auto_recovery_resources
from quire_operator.builders.toml import toml_text

GRACE_S = 30


def recovery_children(resource: Bookie, default_image: str, pod_monitors: bool) -> list[Manifest]:
    """Return configuration and Deployment. They exist with 0 replicas, too, so that one field switches them on."""
    found = [config_map(resource), deployment(resource, default_image)]
    if pod_monitors and resource.spec.monitoring.enabled:
        secret = https_secret(resource)
        found.append(pod_monitor("Bookie", resource.meta, AUTO_RECOVERY, resource.spec.monitoring, secret=secret))
    return found


def config_text(resource: Bookie) -> str:
    """Return the configuration file."""
    return toml_text(recovery_settings(resource.spec), CONFIG_HEAD)


def config_map(resource: Bookie) -> Manifest:
    """Return the ConfigMap with the configuration file."""
    return child("ConfigMap", "v1", "Bookie", resource.meta, AUTO_RECOVERY) | {
        "data": {CONFIG_FILE: config_text(resource)}
    }


def deployment(resource: Bookie, default_image: str) -> Manifest:
    """Return the Deployment. Each process replicates, and one is elected auditor; all are stateless and replaceable."""
    meta, spec = resource.meta, resource.spec
    arguments = ["autorecovery", "--name", "$(POD_NAME)"]
    image = spec.image or default_image
    ports, https = {"http": RECOVERY_HTTP_PORT}, is_https_only(spec.tls)
    main = container(image, arguments, ports, auto_recovery_resources(spec), "/readyz", tls=https)
    account = child_name(meta.name, BOOKIE)
    pod = pod_spec(main, child_name(meta.name, AUTO_RECOVERY), account, GRACE_S)
    match, scheduling = selector(meta.name, AUTO_RECOVERY), _scheduling(spec.pod_template)
    pod = with_secrets(pod | spread(match, spec.placement.topology_keys, 1, enforce=False), spec.metadata, spec.tls)
    pod = with_priority(pod, spec.priority_class_name)
    pod = with_pool_tokens(pod, spec.authentication, TOKEN_KEY, BOOKIE_TOKEN)
    return child("Deployment", "apps/v1", "Bookie", meta, AUTO_RECOVERY) | {
        "spec": {
            "replicas": spec.auto_recovery.replicas,
            "selector": {"matchLabels": match},
            "template": pod_template(meta.name, AUTO_RECOVERY, pod, config_text(resource), scheduling),
        }
    }


def _scheduling(template: PodTemplate) -> PodTemplate:
    """Return the parts of the bookies' template that all pods of the pool need for scheduling and image pulls."""
    shared = ("imagePullSecrets", "tolerations", "nodeSelector", "priorityClassName")
    return PodTemplate(
        metadata=template.metadata, spec={key: value for key, value in template.spec.items() if key in shared}
    )
