"""Metrics of security: all are shown, those of a certificate only if there is one."""

import dataclasses
from pathlib import Path

from quire_bookie.admin.security_metrics import SECURITY, TLS, add_security
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.tls import TlsContext, TlsStats, certificate_end_ms, client_context
from quire_bookie.exposition.families import Families
from quire_bookie.server.security.guard import Guard, SecurityStats
from quire_bookie.settings.tls import TlsFiles
from tests.support.certificates import Authority


def test_every_counter_has_a_name() -> None:
    assert {field.name for field in dataclasses.fields(SecurityStats)} == set(SECURITY) | {"tls"}
    assert {field.name for field in dataclasses.fields(TlsStats)} == set(TLS) | {"certificate_end_ms"}


def samples(guard: Guard) -> dict[str, tuple[float, dict[str, str]]]:
    """Return value and labels of each sample, by name."""
    families = Families()
    add_security(families, guard, {"bookie": "b"})
    return {sample.name: (sample.value, sample.labels) for family in families for sample in family.samples}


async def test_a_certificates_end_is_shown_if_there_is_one(tmp_path: Path) -> None:
    assert not any("certificate" in name for name in samples(Guard()))
    pem = Authority(tmp_path).issue("bookie")
    tls = TlsContext(
        TlsFiles(pem.certificate, pem.key), lambda files: client_context(files, check_host_name=True), 0, SystemClock()
    )
    await tls.open()
    shown = samples(Guard(tls=tls))
    end = (certificate_end_ms(pem.certificate) / 1000, {"bookie": "b"})
    assert shown["quire_bookie_tls_certificate_end_seconds"] == end
    assert shown["quire_bookie_tls_certificate_loads"][0] == 1
