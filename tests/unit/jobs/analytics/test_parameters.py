"""Locations of results, and parameters that need each other."""

from typing import Any

import pytest

from quire_jobs.analytics import cost
from quire_jobs.errors import JobOptionsError
from quire_jobs.job import parse_parameters

GIVEN = {"metadata": "etcd://e:2379"}


def parameters(**given: Any) -> cost.Parameters:
    return parse_parameters(cost.Parameters, GIVEN | {"output": "file:///out"} | given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("s3://b/r/", "s3://b/r"),
        ("s3a://b", "s3://b"),
        ("gs://b/x", "gs://b/x"),
        ("az://c", "az://c"),
        ("file:///r", "file:///r"),
    ],
)
def test_an_output_is_a_folder_or_bucket(given: str, expected: str) -> None:
    assert parameters(output=given).output == expected


@pytest.mark.parametrize("given", ["", "r", "/r", "file://host/r", "file:///", "s3://", "hdfs://n/r", "abfss://c@a/r"])
def test_an_invalid_output_is_named(given: str) -> None:
    with pytest.raises(JobOptionsError, match=r"output.*give s3://bucket/folder"):
        parameters(output=given)


def test_iceberg_needs_the_namespace_of_its_tables_and_other_formats_reject_one() -> None:
    assert parameters(format="Iceberg", tables="lake.quire.reports").tables == "lake.quire.reports"
    for given in ({"format": "iceberg"}, {"tables": "lake.reports"}):
        with pytest.raises(JobOptionsError, match="give both or neither"):
            parameters(**given)
    for tables in ("lake", "lake.", "s3://b/t"):
        with pytest.raises(JobOptionsError, match=r"give catalog\.namespace"):
            parameters(format="iceberg", tables=tables)


def test_a_run_uses_one_time() -> None:
    given = parameters()
    assert given.now_s == given.now_s
    assert parameters(asOf="1970-01-02T00:00:00Z").now_s == 86_400
