"""Memory for direct writes: it begins on a page, and is quick to fill and to hand to the kernel.

Private, and in huge pages from 2 MiB on: what `mmap` gives by default is shared memory in small pages, whose faults and
pinning cost a third of what writing it costs.
"""

import contextlib
import mmap


def page_memory(size: int) -> mmap.mmap:
    """Zeros, `size` bytes of them. Goes with the last view of it."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
