"""Generated message classes (see scripts/generate_protos.sh). Imported only by the codecs of this package."""
