"""Judges what `quire doctor` measured, and recommends changes. Pure."""

from collections.abc import Sequence
from enum import StrEnum

from quire_bookie.dataclass import dataclass
from quire_bookie.env.host_facts import DiskFacts, HostFacts

FREE_SHARE_MIN = 0.10
FREE_BYTES_MIN = 2 << 30
SYNC_WARN_MS = 10.0
SYNC_FAIL_MS = 100.0
ETCD_WARN_MS = 50.0
OPEN_FILES_MIN = 65_536
SWAPPINESS_MAX = 10
IN_MEMORY = ("tmpfs", "ramfs")
SHARED = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs")


class Verdict(StrEnum):
    """How a finding concerns the user."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: the measured value, and the change that helps; no advice if all is well."""

    check: str
    verdict: Verdict
    value: str
    advice: str = ""


def of_disk(facts: DiskFacts) -> list[Finding]:
    """Judge space, kind and sync time of a folder's file system."""
    share = facts.free_bytes / facts.total_bytes if facts.total_bytes else 0.0
    is_low = share < FREE_SHARE_MIN or facts.free_bytes < FREE_BYTES_MIN
    median, worst = facts.sync_ms[len(facts.sync_ms) // 2], facts.sync_ms[-1]
    return [
        Finding(
            f"space of {facts.folder}",
            Verdict.WARNING if is_low else Verdict.OK,
            f"{facts.free_bytes / (1 << 30):.1f} of {facts.total_bytes / (1 << 30):.1f} GiB free ({share:.0%})",
            "free space or use a larger disk: bookies turn read-only at 95 % used (diskUsageThreshold)"
            if is_low
            else "",
        ),
        _of_kind(facts),
        Finding(
            f"syncs of {facts.folder}",
            Verdict.FAILED if median >= SYNC_FAIL_MS else Verdict.WARNING if median >= SYNC_WARN_MS else Verdict.OK,
            f"4 KiB in {median:.1f} ms (median), {worst:.1f} ms (slowest of {len(facts.sync_ms)})",
            "put journals on an SSD of their own (journalDirectories): every acknowledgement waits for such a sync"
            if median >= SYNC_WARN_MS
            else "",
        ),
    ]


def _of_kind(facts: DiskFacts) -> Finding:
    check = f"file system of {facts.folder}"
    if facts.kind is None:
        return Finding(check, Verdict.UNKNOWN, "this system does not tell")
    if facts.kind in IN_MEMORY:
        return Finding(check, Verdict.FAILED, facts.kind, "use a disk: this one loses its files when the host stops")
    if facts.kind in SHARED:
        return Finding(check, Verdict.WARNING, facts.kind, "use a local disk: locks and syncs over a network are slow")
    return Finding(check, Verdict.OK, facts.kind)


def of_host(facts: HostFacts) -> list[Finding]:
    """Judge kernel, limits and clock."""
    found = [Finding("kernel", Verdict.OK, facts.kernel)]
    if facts.swappiness is None:
        found.append(Finding("swapping", Verdict.UNKNOWN, "this system does not tell"))
    else:
        swaps = facts.swappiness > SWAPPINESS_MAX
        advice = f"sysctl vm.swappiness={SWAPPINESS_MAX} or less: swapped memory delays every client" if swaps else ""
        verdict = Verdict.WARNING if swaps else Verdict.OK
        found.append(Finding("swapping", verdict, f"vm.swappiness = {facts.swappiness}", advice))
    if facts.huge_pages is not None:
        always = facts.huge_pages == "always"
        advice = "set transparent_hugepage to madvise: background compaction of memory causes pauses" if always else ""
        found.append(Finding("huge pages", Verdict.WARNING if always else Verdict.OK, facts.huge_pages, advice))
    few = facts.open_files is not None and facts.open_files < OPEN_FILES_MIN
    found.append(
        Finding(
            "open files",
            Verdict.WARNING if few else Verdict.OK,
            "unlimited" if facts.open_files is None else f"at most {facts.open_files:,}",
            f"raise the hard limit to {OPEN_FILES_MIN:,} or more (ulimit -Hn, LimitNOFILE=): each connection needs one"
            if few
            else "",
        )
    )
    if facts.clock_is_synchronised is None:
        found.append(Finding("clock", Verdict.UNKNOWN, "the kernel does not tell"))
    elif facts.clock_is_synchronised:
        found.append(Finding("clock", Verdict.OK, "follows a time server"))
    else:
        advice = "run chrony or another NTP client: expiry, tokens and retention compare clocks of several hosts"
        found.append(Finding("clock", Verdict.WARNING, "follows no time server, as far as the kernel knows", advice))
    return found


def of_etcd(url: str, answers_ms: Sequence[float]) -> Finding:
    """Judge the times in which the metadata store answered reads."""
    ordered = sorted(answers_ms)
    median = ordered[len(ordered) // 2]
    slow = median >= ETCD_WARN_MS
    return Finding(
        f"metadata at {url}",
        Verdict.WARNING if slow else Verdict.OK,
        f"answers in {median:.1f} ms (median), {ordered[-1]:.1f} ms (slowest of {len(ordered)})",
        "give etcd a disk of its own, close to brokers and bookies: opening a topic takes several such steps"
        if slow
        else "",
    )
