"""The resources of `quire.dev/v1alpha1` as values, and the CRDs generated from them. Never accesses a cluster."""

GROUP = "quire.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
