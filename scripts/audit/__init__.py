"""`make audit`: known vulnerabilities of what is shipped, its pins, and a list of all of it (SBOM)."""
