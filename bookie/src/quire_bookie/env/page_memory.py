"""Allocates memory for direct writes: page-aligned, and fast to fill and to pass to the kernel.

Private, and in huge pages from 2 MiB on: by default `mmap` returns shared memory in small pages, whose faults and
pinning cost a third as much as writing it.
"""

import contextlib
import mmap


def page_memory(size: int) -> mmap.mmap:
    """Return `size` zero bytes. The memory is freed with its last view."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
