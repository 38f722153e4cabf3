"""Builds the manifests of a resource's children from the resource and facts of the cluster. Pure: no I/O, no clock."""

from collections.abc import Mapping
from typing import Any

Manifest = dict[str, Any]
"""A Kubernetes object as a plain dict, as sent to the API server."""

ReadManifest = Mapping[str, Any]
