"""`make audit`: checks the releases for known vulnerabilities and missing pins, and lists their parts (SBOM)."""
