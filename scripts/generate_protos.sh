#!/bin/sh
# Regenerates the message classes of every src/**/proto/*.proto. Run it after changing one, commit the result.
# Usage: scripts/generate_protos.sh        (PYTHON=... selects the interpreter; default: the workspace's)
set -eu
cd "$(dirname "$0")/.."
python="${PYTHON:-.venv/bin/python}"
for source_root in bookie/src broker/src; do
    find "$source_root" -path '*/proto/*.proto' | sort | while read -r path; do
        "$python" -m grpc_tools.protoc -I "$source_root" \
            --python_out="$source_root" --pyi_out="$source_root" "$path"
    done
done
