import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from quire_bookie.cli.main import run
from quire_bookie.errors import ConfigError, QuireError
from quire_jobs.analytics.parameters import AnalysisParameters
from quire_jobs.errors import DataLossError, NotFoundError, QuireJobError, SourceUnavailableError
from quire_jobs.job import JobParameters, Problem, Progress, Summary, job_name, parse_parameters
from quire_jobs.main import kinds, spark_session
from quire_jobs.main.jobs import assigned, exit_code, moment_of, pairs, read_file, slot_of, with_slot
from quire_jobs.main.kinds import MODULES, load_kind, shown_parameters
from quire_jobs.offload.job import Parameters

GIVEN = ["target=s3://bucket", "topics=a,b", "--metadata", "etcd://127.0.0.1:1", "--http", "http://127.0.0.1:1"]


def test_every_kind_loads_without_a_jvm_and_describes_every_parameter() -> None:
    for name in MODULES:
        kind = load_kind(name)
        assert kind.text.endswith(".")
        shown = shown_parameters(kind.parameters)
        assert all(parameter.text.endswith((".", "]")) for parameter in shown), name
        assert {"metadata", "http"} <= {parameter.name for parameter in shown}
    assert SparkContext._gateway is None


def test_kinds_are_listed_as_a_table_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "list"]) == 0
    said = capsys.readouterr().out
    assert re.search("^offload +Copy closed ledgers into a bucket", said, re.MULTILINE)
    assert all(re.search(f"^{name} ", said, re.MULTILINE) for name in MODULES)
    assert run(["jobs", "list", "offload"]) == 0
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if line.startswith("target ")] and "(needed)" in said
    assert run(["jobs", "list", "--json"]) == 0
    (offload,) = [row for row in json.loads(capsys.readouterr().out) if row["kind"] == "offload"]
    by_name: dict[str, Any] = {row["name"]: row for row in offload["parameters"]}
    assert by_name["afterTime"]["default"] == "" and by_name["target"]["default"] is None
    assert by_name["topics"]["type"] == "tuple of str"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "unknown kind of job 'nothing'; known kinds: "),
        (["offload", *GIVEN], "no Spark chosen: give --local, or --master"),
        (["offload", *GIVEN, "--local", "--master", "local[1]"], "--local and --master local[1]: give only one"),
        (["offload", *GIVEN, "--local", "topics"], "parameter topics: expected NAME=VALUE"),
        (["offload", *GIVEN, "--local", "afterTime=soon"], "afterTime = 'soon': expected a number, alone or with s"),
        (["offload", *GIVEN, "--local", "into=x"], "unknown parameter 'into'; known parameters: "),
        (["offload", "--local", "topics=a", "target=s3://b"], "the parameter 'metadata' is missing"),
        (["offload", *GIVEN, "--local", "--slot", "noon"], "--slot noon: not a time"),
        (["offload", *GIVEN, "--local", "--conf", "spark.x"], "--conf spark.x: expected KEY=VALUE"),
        (["offload", *GIVEN, "--local", "--params", "/nonexistent"], "--params /nonexistent: No such file"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2_before_spark_starts(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYSPARK_GATEWAY_PORT", "QUIRE_SPARK_MASTER"):
        monkeypatch.delenv(name, raising=False)
    assert run(["jobs", "run", *arguments]) == 2
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("quire: ")]
    assert said in line and captured.out == ""


def test_a_failure_is_printed_as_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "run", "offload", "--local", "--json", "topics=a"]) == 2
    row = json.loads(capsys.readouterr().out)
    assert row["kind"] == "offload" and row["outcome"] == "failed" and "'target' is missing" in row["error"]


class NoSpark:
    """Replaces a session; these jobs do not use it."""

    def stop(self) -> None:
        """Do nothing, since nothing runs."""


@pytest.mark.parametrize(
    ("ends", "code", "retry_helps"),
    [
        (QuireJobError("the broker is busy"), 1, True),
        (SourceUnavailableError("etcd does not answer"), 1, True),
        (NotFoundError("topic a does not exist"), 3, False),
        (DataLossError("ledger 7 is gone"), 3, False),
    ],
)
def test_the_exit_code_and_the_log_show_whether_a_retry_helps(
    ends: Exception,
    code: int,
    retry_helps: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_job(_spark: object, _parameters: JobParameters, _progress: Progress) -> Summary:
        raise ends

    monkeypatch.setattr(kinds, "load_kind", lambda name: kinds.Kind(name, "A job.", JobParameters, run_job))
    monkeypatch.setattr(spark_session, "start_spark", lambda *_, **__: NoSpark())
    log = tmp_path / "log"
    assert run(["jobs", "run", "audit", "--local", "--termination-log", str(log)]) == code
    assert f"quire: {ends}" in capsys.readouterr().err
    assert json.loads(log.read_text()) == {
        "kind": "audit",
        "outcome": "failed",
        "error": str(ends),
        "retry_helps": retry_helps,
    }


def test_a_terminated_job_stops_spark_and_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []

    def run_job(_spark: object, _parameters: JobParameters, _progress: Progress) -> Summary:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal ends it")

    spark = NoSpark()
    monkeypatch.setattr(spark, "stop", lambda: stopped.append(True), raising=False)
    monkeypatch.setattr(kinds, "load_kind", lambda name: kinds.Kind(name, "A job.", JobParameters, run_job))
    monkeypatch.setattr(spark_session, "start_spark", lambda *_, **__: spark)
    log = tmp_path / "log"
    with pytest.raises(SystemExit) as ended:
        run(["jobs", "run", "audit", "--local", "--termination-log", str(log)])
    assert ended.value.code == 143 and stopped == [True]
    said = json.loads(log.read_text())
    assert said["outcome"] == "failed" and "signal" in said["error"] and said["retry_helps"]


def test_exit_codes_of_finished_runs() -> None:
    temporary, final = (Problem(subject="a", reason="b", retry_helps=helps) for helps in (True, False))
    assert exit_code(Summary(kind="audit")) == 0
    assert exit_code(Summary(kind="audit", problems=[final, temporary])) == 1
    assert exit_code(Summary(kind="audit", problems=[final])) == 3


def test_wrong_usage_is_in_the_termination_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run(["jobs", "run", "offload", "--local", "topics=a", "--termination-log", str(log)]) == 2
    said = json.loads(log.read_text())
    assert "'target' is missing" in said["error"] and said["retry_helps"] is False


def test_parameters_come_from_files_and_arguments(tmp_path: Path) -> None:
    yaml, js = tmp_path / "p.yaml", tmp_path / "p.json"
    yaml.write_text("target: s3://b\ntopics: [a, b]\nafterTime: 4h\n")
    js.write_text('{"target": "s3://b", "topics": ["a", "b"], "afterTime": "4h"}')
    assert read_file(yaml) == read_file(js) == {"target": "s3://b", "topics": ["a", "b"], "afterTime": "4h"}
    assert assigned(Parameters, ["topics=a, b,", "ledgers=1,2", "rate=5M"]) == {
        "topics": ["a", "b"],
        "ledgers": ["1", "2"],
        "rate": "5M",
    }
    yaml.write_text("- a")
    with pytest.raises(ConfigError, match="not a mapping; give parameters"):
        read_file(yaml)
    yaml.write_text("{")
    with pytest.raises(ConfigError, match="neither JSON nor YAML"):
        read_file(yaml)


def test_a_slot_is_the_same_in_every_time_zone() -> None:
    given = [moment_of("2026-01-31T04:00:00Z"), moment_of("2026-01-31T05:00:00+01:00")]
    assert [slot_of(moment) for moment in given] == ["20260131T040000Z"] * 2
    with pytest.raises(ConfigError, match="the time zone is missing"):
        moment_of("2026-01-31T04:00:00")


def test_each_attempt_of_a_slot_uses_the_slot_s_time() -> None:
    given: dict[str, Any] = {"output": "file:///r", "metadata": "etcd://h:1"}
    parameters = parse_parameters(load_kind("backlog").parameters, given)
    noon, hour_later = moment_of("2026-01-31T12:00:00Z"), moment_of("2026-01-31T14:00:00+01:00")
    first, again, next_slot = (with_slot(parameters, "backlog", slot) for slot in (noon, noon, hour_later))
    assert isinstance(first, AnalysisParameters) and noon is not None
    assert first == again and first.now_s == noon.timestamp()
    assert first.run_id == f"{job_name('backlog', parameters)}-20260131T120000Z"
    assert next_slot.run_id.rpartition("-")[0] == first.run_id.rpartition("-")[0], "both are runs of one job"


def test_a_given_time_overrides_the_slot_s_and_without_a_slot_it_is_now() -> None:
    given: dict[str, Any] = {"output": "file:///r", "metadata": "etcd://h:1", "runId": "mine"}
    asked = parse_parameters(AnalysisParameters, given | {"asOf": "2026-01-01T00:00:00Z"})
    slot = moment_of("2026-01-31T12:00:00Z")
    assert with_slot(asked, "backlog", slot) == asked
    plain = parse_parameters(AnalysisParameters, given)
    assert with_slot(plain, "backlog", None).as_of is None
    assert with_slot(plain, "backlog", slot).run_id == "mine"
    offload = parse_parameters(Parameters, {"target": "s3://b", "topics": ["a"], "metadata": "m", "http": "h"})
    assert not hasattr(with_slot(offload, "offload", slot), "as_of"), "the kind offload has no such parameter"


SECRET = "not-for-the-log"
CONF = ("--conf", f"spark.hadoop.fs.s3a.secret.key={SECRET}", "--conf", "spark.ui.port=4041")


@pytest.mark.parametrize("ends", [None, ConfigError, NotFoundError, QuireJobError, QuireError])
def test_no_output_of_a_run_contains_a_secret_of_spark_s_settings(
    ends: type[Exception] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"fs.s3a.secret.key should be an ARN, but was {SECRET}"

    def run_job(_spark: object, _parameters: JobParameters, _progress: Progress) -> Summary:
        if ends is not None:
            raise ends(text)
        found = Problem(subject=SECRET, reason=text, retry_helps=True)
        return Summary(kind="audit", problems=[found], notes=[text], outputs=[SECRET], details={"a": [text]}, done=0)

    monkeypatch.setattr(kinds, "load_kind", lambda name: kinds.Kind(name, "A job.", JobParameters, run_job))
    monkeypatch.setattr(spark_session, "start_spark", lambda *_, **__: NoSpark())
    log = tmp_path / "log"
    expected = 1 if ends not in (ConfigError, NotFoundError) else 2 if ends is ConfigError else 3
    for more in ([], ["--json"]):
        assert run(["jobs", "run", "audit", "--local", "--termination-log", str(log), *CONF, *more]) == expected
        captured = capsys.readouterr()
        assert SECRET not in captured.out + captured.err + log.read_text()
        assert "but was REDACTED" in captured.out + captured.err and "but was REDACTED" in log.read_text()
        assert "--conf spark.hadoop.fs.s3a.secret.key: its value is visible in the process list" in captured.err
        assert json.loads(log.read_text())["outcome"] == "failed", "a run that did nothing stays a failure"


@pytest.mark.parametrize("wrong", [f"spark.x.password {SECRET}", f"spark.x.password:{SECRET}", f"={SECRET}"])
def test_the_error_for_a_mistyped_setting_omits_its_possible_value(wrong: str) -> None:
    with pytest.raises(ConfigError, match="expected KEY=VALUE") as refused:
        pairs([wrong], "--conf")
    assert SECRET not in str(refused.value)


def test_a_value_may_contain_an_equals_sign() -> None:
    assert pairs(["a=b=c", " d = e "], "parameter") == {"a": "b=c", "d": "e"}
