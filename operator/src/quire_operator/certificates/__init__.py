"""Certificates that the operator makes itself: an authority for each Kubernetes namespace, a Secret for each resource.

`subjects` says who needs which names, `deciding` what is missing or about to end (both pure), `issuing` makes keys and
certificates, `keeping` reads and writes the Secrets. Never touches a Secret that it did not make.
"""
