"""A password that a user put into a URL: refused, and not repeated in the error, which ends up in logs."""

from collections.abc import Callable

import pytest

from quire_bookie.errors import ConfigError
from quire_bookie.metadata.url import parse_metadata_url
from quire_bookie.object_store.opening import open_object_store
from quire_jobs.errors import JobOptionsError
from quire_jobs.source.broker_http import BrokerHttp

SECRET = "correct-horse-battery"
USER = f"user:{SECRET}@"


@pytest.mark.parametrize(
    "url",
    [
        f"etcd://{USER}host:2379",
        f"etcd:http://{USER}host:2379",
        f"etcd:https://{USER}host,https://host",
        f"metadata-store:etcd://{USER}host",
        f"zk://{USER}host",
        f"{USER}host:2379",
    ],
)
def test_the_url_of_a_metadata_store_holds_no_password(url: str) -> None:
    with pytest.raises(ConfigError, match="metadataPassword") as caught:
        parse_metadata_url(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "act",
    [
        lambda: open_object_store(f"s3://{USER}bucket/x", {}),
        lambda: open_object_store(f"https://{USER}host/x", {}),
        lambda: open_object_store(f"s3://bucket/x?secret={SECRET}", {}),
        lambda: open_object_store("s3://bucket/x", {}, f"https://{USER}host"),
        lambda: open_object_store("az://bucket/x", {}, f"{USER}host"),
    ],
)
def test_the_url_of_a_place_holds_no_password(act: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="credentials") as caught:
        act()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("http", [f"http://{USER}host:8080", f"ftp://{USER}host", f"{USER}host"])
def test_options_of_a_job_hold_no_password(http: str) -> None:
    pytest.importorskip("pyspark")
    from quire_jobs.sink.options import parse_sink_options
    from quire_jobs.source.options import parse_options

    sink = {"topic": "x", "serviceUrl": "pulsar://host:6650"}
    for act in (
        lambda: BrokerHttp(http),
        lambda: parse_options({"metadata": "etcd://host", "topic": "x", "http": http, "jobId": "job"}),
        lambda: parse_sink_options({**sink, "http": http}),
        lambda: parse_sink_options({**sink, "serviceUrl": http}),
        lambda: parse_options({"metadata": "etcd://host", "topic": "x", "token": SECRET}),
    ):
        with pytest.raises(JobOptionsError) as caught:
            act()
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None, "pydantic's own error shows the input"
