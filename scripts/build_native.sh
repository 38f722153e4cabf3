#!/usr/bin/env bash
# Builds the optional native module (docs/decisions/0004) into the source tree, where the package imports it. Compiled crates
# stay in the user's cache folder: the first build takes about a minute, later ones seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TARGET_DIR=${XDG_CACHE_HOME:-$HOME/.cache}/quire/native
mkdir -p "$CARGO_TARGET_DIR"
if command -v flock >/dev/null; then # macOS has none
  exec 9> "$CARGO_TARGET_DIR/.quire-lock"
  flock 9 # checkouts share the folder, so build and copy need a lock
fi
cargo build --quiet --release --locked --manifest-path bookie/native/Cargo.toml
case $(uname) in
  Darwin) built=lib_native.dylib ;;
  *) built=lib_native.so ;;
esac
target=bookie/src/quire_bookie/bulk/_native.abi3.so
cp "$CARGO_TARGET_DIR/release/$built" "$target.new"
mv "$target.new" "$target"
