"""Message classes generated from pulsar.proto by scripts/generate_protos.sh; never edited by hand."""
