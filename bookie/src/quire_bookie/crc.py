"""Provides CRC32C (Castagnoli) of any buffer, from the `crc32c` library's extension module. Computes nothing itself.

When imported, the package reads its own version from the installed distributions, which takes a twentieth of a bookie's
start and is of no use to us. So the extension is loaded directly, and the package only if a later version has moved the
extension. The package can still be imported elsewhere: the two are independent.
"""

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

_PACKAGE, _EXTENSION = "crc32c", "_crc32c"


def _extension() -> ModuleType | None:
    """Load the extension without its package; None if it is not where it is expected."""
    package = find_spec(_PACKAGE)
    folders = None if package is None else package.submodule_search_locations
    found = None if folders is None else PathFinder.find_spec(_EXTENSION, list(folders))
    if found is None or found.loader is None:
        return None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module if hasattr(module, "crc32c") else None


if TYPE_CHECKING:
    from crc32c import crc32c as crc32c
else:
    _loaded = _extension()
    if _loaded is None:
        from crc32c import crc32c
    else:
        crc32c = _loaded.crc32c

__all__ = ["crc32c"]
