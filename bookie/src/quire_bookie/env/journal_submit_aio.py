"""Journal submit with Linux AIO: O_DIRECT, RWF_DSYNC and an eventfd that the event loop watches. No thread.

Owns one file handle, and while the file is open one kernel context and one aligned buffer into which a group is copied,
so that the caller's buffers are free when `submit` returns. Must never receive a second submission while one is in
flight, never report success for fewer bytes than requested, and never destroy a context on the event loop.

The system calls go through ctypes because the standard library lacks them. Layouts: `man 2 io_submit`,
`linux/aio_abi.h`.
"""

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Sequence

from quire_bookie.env.journal_submission import Done, JournalSubmission
from quire_bookie.env.page_memory import page_memory
from quire_bookie.limits import JOURNAL_ALIGNMENT_BYTES
from quire_bookie.model import Buffer

# (io_setup, io_destroy, io_getevents, io_submit) by machine
_SYSCALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_IOCB_CMD_PWRITE = 1
_IOCB_FLAG_RESFD = 1
_RWF_DSYNC = 2
_FIRST_BUFFER_BYTES = 1 << 20


class _ControlBlock(ctypes.Structure):
    """struct iocb of a 64-bit little-endian machine."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_fd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """struct io_event."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("control_block", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class AioContext:
    """One kernel AIO context with capacity for one write at a time, and its aligned buffer.

    Raises OSError (ENOSYS) if the machine or a sandbox has no AIO.
    """

    def __init__(self) -> None:
        numbers = _SYSCALLS.get(os.uname().machine) if sys.platform == "linux" else None
        if numbers is None or sys.byteorder != "little":
            raise OSError(errno.ENOSYS, "no Linux AIO on this machine")
        self._setup, self._destroy, self._getevents, self._submit = numbers
        libc = ctypes.CDLL(None, use_errno=True)
        self._syscall = libc.syscall
        self._syscall.restype = ctypes.c_long
        self._context = ctypes.c_uint64(0)
        self._call(self._setup, ctypes.c_long(1), ctypes.byref(self._context))
        self._block = _ControlBlock(opcode=_IOCB_CMD_PWRITE, rw_flags=_RWF_DSYNC)
        self._blocks = (ctypes.c_void_p * 1)(ctypes.addressof(self._block))
        self._event = _Event()
        self._poll = _Timespec(0, 0)
        self._memory = page_memory(_FIRST_BUFFER_BYTES)
        self._address = self._address_of(self._memory)

    def start(self, fd: int, offset: int, buffers: Sequence[Buffer], event_fd: int | None) -> int:
        """Copy the buffers and submit them to the kernel. Returns the bytes submitted; OSError if refused."""
        size = sum(map(len, buffers))
        if size > len(self._memory):
            # Replaced only while nothing is in flight, so the kernel holds no pointer into the old one.
            self._memory = page_memory(1 << (size - 1).bit_length())
            self._address = self._address_of(self._memory)
        end = 0
        for buffer in buffers:
            start, end = end, end + len(buffer)
            self._memory[start:end] = buffer
        block = self._block
        block.fd, block.buffer, block.size, block.offset = fd, self._address, size, offset
        block.flags, block.event_fd = (0, 0) if event_fd is None else (_IOCB_FLAG_RESFD, event_fd)
        self._call(self._submit, self._context, ctypes.c_long(1), self._blocks)
        return size

    def result(self, *, wait: bool) -> int | None:
        """Return the bytes of the finished write, or None while it is in flight; OSError if it failed."""
        timeout = None if wait else ctypes.byref(self._poll)
        found = self._call(
            self._getevents,
            self._context,
            ctypes.c_long(1 if wait else 0),
            ctypes.c_long(1),
            ctypes.byref(self._event),
            timeout,
        )
        if found == 0:
            return None
        if self._event.result < 0:
            raise OSError(-self._event.result, os.strerror(-self._event.result))
        return int(self._event.result)

    def close(self) -> None:
        """Destroy the context; waits for a write in flight, and then about 30 ms for all processors."""
        self._call(self._destroy, self._context)

    def _call(self, number: int, *arguments: object) -> int:
        result = int(self._syscall(ctypes.c_long(number), *arguments))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result

    @staticmethod
    def _address_of(memory: mmap.mmap) -> int:
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        return ctypes.addressof(view)


class AioContexts:
    """Keeps contexts for the next files: a bookie under load fills several files a second, and to destroy the context
    of each blocked its event loop for about 30 ms. Holds at most one for each file that was open at the same time.
    """

    def __init__(self) -> None:
        self._free: list[AioContext] = []

    def take(self) -> AioContext:
        """Return a context without a write in flight, for the caller alone. OSError as `AioContext`."""
        return self._free.pop() if self._free else AioContext()

    def give_back(self, context: AioContext) -> None:
        """Keep a context whose last write has ended."""
        self._free.append(context)

    def close(self) -> None:
        """Destroy the contexts that were given back. Blocks."""
        while self._free:
            self._free.pop().close()


class AioJournalFile(JournalSubmission):
    """Implements `JournalFile` for a preallocated file. Open and use it on one event loop."""

    def __init__(self, path: str, contexts: AioContexts) -> None:
        super().__init__(path)
        self._contexts = contexts
        self._fd = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        self._event_fd = -1
        try:
            self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._context = contexts.take()
        except OSError:
            os.close(self._fd)
            if self._event_fd >= 0:
                os.close(self._event_fd)
            raise
        self._loop.add_reader(self._event_fd, self._wake)
        self._size = 0

    def submit(self, offset: int, buffers: Sequence[Buffer], done: Done) -> None:
        """Write `buffers` at `offset`; `done` runs on the loop once they are durable or have failed."""
        self._begin(done)
        try:
            self._size = self._context.start(self._fd, offset, buffers, self._event_fd)
        except OSError as error:
            # `done` never runs inside `submit`.
            self._loop.call_soon(self._finish, error)

    def _wake(self) -> None:
        try:
            os.eventfd_read(self._event_fd)
            written = self._context.result(wait=False)
        except BlockingIOError:
            return
        except OSError as error:
            self._finish(error)
            return
        if written is None:
            return
        short = OSError(errno.EIO, f"{written} of {self._size} bytes written to {self._path}")
        self._finish(None if written == self._size else short)

    async def close(self) -> None:
        """Wait for the submission in flight, then close the file."""
        await self._settled()
        self._loop.remove_reader(self._event_fd)
        self._contexts.give_back(self._context)
        os.close(self._event_fd)
        os.close(self._fd)


def probe(folder: str, contexts: AioContexts) -> None:
    """Write one block in `folder` like `AioJournalFile`. Blocks; OSError explains why it does not work here."""
    if not hasattr(os, "O_DIRECT") or not hasattr(os, "eventfd"):
        raise OSError(errno.ENOSYS, "the system has no such calls")
    path = f"{folder}/.journal-submit-probe"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    try:
        context = contexts.take()
        try:
            context.start(fd, 0, [bytes(JOURNAL_ALIGNMENT_BYTES)], None)
            written = context.result(wait=True)
        finally:
            contexts.give_back(context)
        if written != JOURNAL_ALIGNMENT_BYTES:
            raise OSError(errno.EIO, f"{written} of {JOURNAL_ALIGNMENT_BYTES} bytes written")
    finally:
        os.close(fd)
        os.unlink(path)
