"""From a resource and what is known of the cluster to the manifests of its children. Pure: no I/O, no clock."""

from collections.abc import Mapping
from typing import Any

Manifest = dict[str, Any]
"""A Kubernetes object as a plain dict, as it is sent to the API server."""

ReadManifest = Mapping[str, Any]
