"""`make audit`: known vulnerabilities of the releases, their pins, and a list of their parts (SBOM)."""
