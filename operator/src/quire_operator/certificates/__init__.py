"""Certificates that the operator generates: an authority for each Kubernetes namespace, a Secret for each resource.

`subjects` defines the names in each certificate, `deciding` finds missing and expiring ones (both pure), `issuing`
creates keys and certificates, `keeping` reads and writes the Secrets. Never changes a Secret that it did not create.
"""
