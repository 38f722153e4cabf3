"""Measures what this broker uses."""

import asyncio
from collections.abc import Callable

from quire_bookie.env.machine import machine_cpus, machine_memory_bytes, process_cpu_s, process_memory_bytes
from quire_broker.balancing.load_report import Usage


class UsageMeter:
    """Measures the process between two calls. `traffic`: the bytes in and out since its start."""

    def __init__(self, traffic: Callable[[], tuple[int, int]], nic_gbps: float) -> None:
        self._traffic, self._nic_gbps = traffic, nic_gbps
        self._memory_bytes = machine_memory_bytes()
        self._cpu_limit = 100.0 * min(1.0, machine_cpus())
        self._at_s: float | None = None
        self._cpu_s, self._in, self._out = process_cpu_s(), *traffic()
        self.last = Usage()
        """The last measurement."""

    def measure(self) -> Usage:
        """Return the usage since the last call. The first one has no CPU and no traffic: a start is not typical."""
        now_s, cpu_s, (size_in, size_out) = asyncio.get_running_loop().time(), process_cpu_s(), self._traffic()
        span_s = 0.0 if self._at_s is None else now_s - self._at_s
        before = self._cpu_s, self._in, self._out
        self._at_s, self._cpu_s, self._in, self._out = now_s, cpu_s, size_in, size_out
        rates = [0.0] * 3
        if span_s > 0:
            rates = [
                (after - earlier) / span_s for after, earlier in zip((cpu_s, size_in, size_out), before, strict=True)
            ]
        self.last = Usage(
            cpu_percent=100 * rates[0],
            cpu_limit_percent=self._cpu_limit,
            memory_bytes=process_memory_bytes(),
            memory_limit_bytes=self._memory_bytes,
            bytes_in_per_s=rates[1],
            bytes_out_per_s=rates[2],
            nic_gbps=self._nic_gbps,
        )
        return self.last
