"""The parameters of the job, and the summary of its results; integration tests run it with real servers."""

import pytest

from quire_bookie.model import LedgerId
from quire_broker.names import parse_topic
from quire_jobs.errors import JobOptionsError
from quire_jobs.job import Outcome, Problem, job_name, parse_parameters
from quire_jobs.offload.attempt_notes import Swept
from quire_jobs.offload.job import KIND, Parameters, _checked, _policy, _summary
from quire_jobs.offload.ledger_copy import CopyResult, CopyState
from quire_jobs.offload.planning import Plan, PlannedLedger
from quire_jobs.offload.policy import Left, OffloadPolicy

GIVEN = {"target": "s3://b", "topics": ["a"], "metadata": "etcd://h:1", "http": "http://h:2"}
TOPIC = parse_topic("a")


def parameters(**more: object) -> Parameters:
    return parse_parameters(Parameters, GIVEN | more)  # type: ignore[arg-type]


def test_amounts_are_accepted_with_units() -> None:
    given = parameters(afterTime="4h", afterSize="10Gi", rate="50M", ledgers=[3, 4], ledgerSizeMin="1Ki")
    assert _policy(given) == OffloadPolicy(14_400.0, 10 << 30, 1024, frozenset({LedgerId(3), LedgerId(4)}))
    assert given.rate == 50_000_000


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"format": "Parquet"}, "format = parquet or iceberg needs a table"),
        ({"table": "file:///data/t"}, "format = parquet or iceberg needs a table"),
        ({"format": "csv"}, "format = 'csv': Input should be 'segment'"),
        ({"topics": []}, "topics = "),
        ({"rate": 0}, "rate = 0: "),
        ({"metadata": ""}, "the parameter 'metadata' is missing: Metadata store of the cluster"),
        ({"http": ""}, "the parameter 'http' is missing: HTTP address of a broker"),
        ({"secretKey": "x"}, "unknown parameter 'secretKey'"),
    ],
)
def test_impossible_parameters_are_refused(more: dict[str, object], said: str) -> None:
    with pytest.raises(JobOptionsError) as raised:
        parameters(**more)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"target": "s3://b/folder"}, "at the root of a bucket"),
        ({"target": "ftp://b"}, "use s3://bucket, gs://bucket"),
        ({"blockSize": "1Mi"}, "a block of at most 1048576 bytes"),
    ],
)
def test_targets_and_blocks_that_brokers_could_not_read_are_refused_at_planning(
    more: dict[str, object], said: str
) -> None:
    with pytest.raises(JobOptionsError) as raised:
        _checked(parameters(**more))
    assert said in str(raised.value)


def test_a_job_with_another_rate_or_age_still_owns_its_abandoned_attempts() -> None:
    def owner(given: Parameters) -> str:
        return job_name(KIND, Parameters.model_construct(target=given.target, topics=given.topics))

    assert owner(parameters()) == owner(parameters(rate="1M", afterTime="1d", runId="x"))
    assert owner(parameters()) != owner(parameters(topics=["b"]))


def test_the_outcome_of_a_run_follows_from_its_ledgers() -> None:
    planned = Plan((TOPIC,), tuple(PlannedLedger(TOPIC, LedgerId(n), 10, 100) for n in (1, 2, 3)), {Left.OPEN: 1})
    done = CopyResult(str(TOPIC), 1, CopyState.OFFLOADED, 10, 100, 260, 0.5)
    left = CopyResult(str(TOPIC), 2, CopyState.LEFT, reason="ledger 2: an attempt of x is in progress")
    failed = CopyResult(str(TOPIC), 3, CopyState.FAILED, reason="it cannot be reached", retry_helps=True)

    good = _summary(planned, [done, left], Swept(segments=2))
    assert good.outcome is Outcome.SUCCEEDED
    assert good.counts["ledgers_offloaded"] == 1 and good.counts["ledgers_left"] == 2
    assert good.counts["stored_bytes"] == 260 and good.counts["segments_swept"] == 2
    assert "an attempt of x is in progress" in good.notes[-1]

    partly = _summary(planned, [failed, done], Swept())
    assert partly.outcome is Outcome.PARTLY
    (problem,) = partly.problems
    assert problem.subject == f"ledger 3 of {TOPIC}" and problem.retry_helps
    assert _summary(planned, [failed], Swept()).outcome is Outcome.FAILED

    unswept = _summary(planned, [done], Swept(), [Problem(subject="sweep", reason="the bucket is away")])
    assert unswept.outcome is Outcome.PARTLY and unswept.counts["ledgers_offloaded"] == 1


def test_a_pattern_without_topics_is_a_note() -> None:
    quiet = _summary(Plan((), (), {}, ("shop/orders/*",)), [], Swept())
    assert quiet.outcome is Outcome.SUCCEEDED and quiet.notes == ["no topic matches shop/orders/* yet"]
