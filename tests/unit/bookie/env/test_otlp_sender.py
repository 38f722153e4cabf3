"""A sender and a collector over HTTP: which answers repeat a batch, and which end it."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from quire_bookie.env import otlp_sender
from quire_bookie.env.otlp_encoding import encode_span
from quire_bookie.env.otlp_options import OtlpOptions, otlp_options
from quire_bookie.env.otlp_sender import OtlpSender
from quire_bookie.errors import ConfigError
from quire_bookie.spans import Kind, Span
from tests.support.certificates import Authority
from tests.support.otlp_receiver import otlp_receiver
from tests.support.polling import until
from tests.support.ports import free_ports

SPAN = ("scope", encode_span(Span("scope", "name", Kind.SERVER, 5, 6, 7, 1_000, 2_000, {})))


def options(endpoint: str, **environment: str) -> OtlpOptions:
    return otlp_options(endpoint, "quire-test", environment)


def test_batches_share_a_connection_and_carry_the_headers() -> None:
    with otlp_receiver() as receiver:
        sender = OtlpSender(options(receiver.url, OTEL_EXPORTER_OTLP_HEADERS="x-tenant=a"))
        assert sender.send([SPAN]) and sender.send([SPAN, SPAN])
        sender.stop()
    assert (len(receiver.spans), receiver.connections) == (3, 1)
    assert receiver.headers["x-tenant"] == "a" and receiver.headers["User-Agent"].startswith("quire/")


def test_a_batch_is_compressed_if_that_is_wanted() -> None:
    with otlp_receiver() as receiver:
        sender = OtlpSender(options(receiver.url, OTEL_EXPORTER_OTLP_COMPRESSION="gzip"))
        assert sender.send([SPAN])
        sender.stop()
    assert (receiver.headers["Content-Encoding"], len(receiver.spans)) == ("gzip", 1)


def test_a_kept_connection_that_the_collector_ended_is_replaced_at_once() -> None:
    (port,) = free_ports(1)
    with otlp_receiver(port) as receiver:
        sender = OtlpSender(replace(options(receiver.url), timeout_s=0.5))  # shorter than the pause of a retry
        assert sender.send([SPAN])
        receiver.end_connections()
    with otlp_receiver(port) as receiver:
        assert sender.send([SPAN])
        sender.stop()


def test_a_busy_collector_gets_the_batch_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_sender, "_RETRY_S", 0.01)
    with otlp_receiver() as receiver:
        receiver.statuses = [503, 429]
        sender = OtlpSender(options(receiver.url))
        assert sender.send([SPAN])
        sender.stop()
    assert (receiver.requests, len(receiver.spans)) == (3, 1)


def test_a_batch_that_the_collector_refuses_is_not_sent_again() -> None:
    with otlp_receiver() as receiver:
        receiver.statuses = [400, 302]
        sender = OtlpSender(options(receiver.url))
        assert not sender.send([SPAN]) and not sender.send([SPAN])
        sender.stop()
    assert receiver.requests == 2


def test_a_batch_fails_at_its_time_limit_or_when_the_sender_stops() -> None:
    (port,) = free_ports(1)
    down = options(f"http://127.0.0.1:{port}/v1/traces")
    assert not OtlpSender(replace(down, timeout_s=0.1)).send([SPAN])
    sender, answers = OtlpSender(replace(down, timeout_s=600.0)), list[bool]()
    thread = threading.Thread(target=lambda: answers.append(sender.send([SPAN])))
    thread.start()
    sender.stop()
    thread.join(60)
    assert answers == [False]


def test_a_pause_that_the_collector_asks_for_does_not_exceed_the_time_limit() -> None:
    with otlp_receiver() as receiver:
        receiver.statuses, receiver.retry_after = [503], "86400"
        sender = OtlpSender(options(receiver.url))
        assert not sender.send([SPAN])
        sender.stop()
    assert receiver.requests == 1


def test_a_collector_with_tls_is_trusted_by_the_given_authority_only(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.issue("server")
    with otlp_receiver(certificate=pem) as receiver:
        sender = OtlpSender(options(receiver.url, OTEL_EXPORTER_OTLP_CERTIFICATE=str(authority.trust)))
        assert sender.send([SPAN])
        sender.stop()
        assert not OtlpSender(replace(options(receiver.url), timeout_s=0.5)).send([SPAN])
    until(lambda: len(receiver.spans) == 1, "the span of the sender that trusts it")


def test_certificates_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "no.pem")
    with pytest.raises(ConfigError, match=r"no\.pem"):
        OtlpSender(options("https://collector:4318/v1/traces", OTEL_EXPORTER_OTLP_CERTIFICATE=missing))
