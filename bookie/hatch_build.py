"""Adds the native module, which QUIRE_NATIVE_LIBRARY names, to the wheel, which then is one of a platform.

Without it the wheel is pure Python. See docs/release.md.
"""

import os
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeModule(BuildHookInterface[Any]):
    """Called by hatchling before it writes a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library and its tag. `version`: the kind of wheel; an editable one has no copy of it."""
        library = os.environ.get("QUIRE_NATIVE_LIBRARY")
        if not library or version == "editable":
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"
        build_data["force_include"][library] = "quire_bookie/bulk/_native.abi3.so"
