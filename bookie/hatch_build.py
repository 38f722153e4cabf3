"""Adds the native module to the wheel, which then is one of a platform. Without it the wheel is pure Python.

QUIRE_NATIVE_LIBRARY names its file, QUIRE_NATIVE_PLATFORM the platform as in the name of a wheel. See docs/release.md.
"""

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeModule(BuildHookInterface[Any]):
    """Called by hatchling before it writes a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library and its tag. `version`: the kind of wheel; an editable one has no copy of it."""
        library = os.environ.get("QUIRE_NATIVE_LIBRARY")
        if not library or version == "editable":
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{os.environ['QUIRE_NATIVE_PLATFORM']}"
        build_data["force_include"][library] = "quire_bookie/bulk/_native.abi3.so"
