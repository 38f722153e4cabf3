"""Observes whether the declared metadata store is another one than running children use, and whose stores both are."""

import asyncio
import json
import tomllib
from urllib.parse import urlsplit

from pydantic import ValidationError

from quire_operator.api.bookie import Bookie
from quire_operator.api.shared import MetadataStore
from quire_operator.builders import Manifest
from quire_operator.builders.naming import METADATA_ANNOTATION
from quire_operator.builders.pods import CONFIG_FILE
from quire_operator.cluster.etcd_gateway import ask_store
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import object_path
from quire_operator.plan.metadata_target import ObservedTarget, accepts

_URL_SETTINGS = ("metadataServiceUri", "metadataStoreUrl")


async def observe_target(
    kube: Kube, pool: Bookie, namespace: str, children: str, there: Manifest | None
) -> ObservedTarget | None:
    """Return the declared store of a pool if running children use another one; None otherwise. Raises KubeError.

    `children`: name of the children's StatefulSet and ConfigMap; `there`: the StatefulSet, whose template may name
    another ConfigMap. Both stores are contacted only if they differ.
    """
    wanted = pool.spec.metadata
    mounted = mounted_config_maps({} if there is None else there["spec"]["template"])
    present = _annotated(there) or await _configured(kube, namespace, next(iter(mounted), children), wanted)
    if present is None or present == wanted:
        return None
    ours, theirs = await asyncio.gather(ask_store(kube, namespace, present), ask_store(kube, namespace, wanted))
    return ObservedTarget(present, wanted, ours, theirs, accepts(pool.meta.annotations, wanted))


def mounted_config_maps(pod: Manifest) -> list[str]:
    """Return the ConfigMaps that a pod, or a template of pods, mounts."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return [one["configMap"]["name"] for one in volumes if "configMap" in one]


def _annotated(there: Manifest | None) -> MetadataStore | None:
    """Return the store in the annotation of the StatefulSet; None if it has no valid one."""
    text = ((there or {}).get("metadata", {}).get("annotations") or {}).get(METADATA_ANNOTATION)
    try:
        return None if text is None else MetadataStore.model_validate(json.loads(text))
    except ValueError:
        return None


async def _configured(kube: Kube, namespace: str, config_map: str, wanted: MetadataStore) -> MetadataStore | None:
    """Return the store in the configuration of children without the annotation, of an earlier version.

    It has no names of Secrets: those of the spec count.
    """
    found = await kube.get(object_path("v1", "ConfigMap", namespace, config_map))
    try:
        settings = tomllib.loads(((found or {}).get("data") or {}).get(CONFIG_FILE, ""))
        url = next((str(settings[key]) for key in _URL_SETTINGS if key in settings), "")
        members = url.removeprefix("etcd://").split(",")
        endpoints = [urlsplit(one if "//" in one else f"//{one}").netloc for one in members]
        return MetadataStore.model_validate(wanted.plain() | {"endpoints": endpoints})
    except (tomllib.TOMLDecodeError, ValidationError):
        return None
