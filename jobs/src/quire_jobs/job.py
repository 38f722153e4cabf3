"""The port between a kind of job and its runner: parameters in, progress reports during the run, a summary at the end.

A kind is a module with three names, listed in `quire_jobs.main.kinds`:

    KIND = "throughput"                              its name in `quire jobs run` and in the operator
    class Parameters(JobParameters): ...             each field has a description; `list` shows the docstring's first
    line def run(spark, parameters, progress) -> Summary  runs on the driver; blocks

Importing the module starts no Spark and no JVM, because `quire jobs list` only reads parameters.
`run` raises JobOptionsError or another QuireJobError if it could do nothing. A failure of single subjects becomes a
`Problem` of the summary. `run` must be repeatable: the same `run_id` again, after a crash at any point, ends in the
same state.
"""

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from quire_jobs.errors import JobOptionsError

_DIGEST_CHARACTERS = 10
P = TypeVar("P", bound="JobParameters")


class JobParameters(BaseModel):
    """Parameters that every kind accepts. Keys may be snake_case or camelCase; unknown keys are rejected.

    Credentials are not parameters: they come from the environment, files or roles, through the usual chain of each
    client.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    run_id: str = Field(default="", description="Name of this run. A run with the same name repeats it. [generated]")
    metadata: str = Field(
        default="",
        description="Metadata store of the cluster, etcd://host:2379,host:2379; or a broker, http://host:8080.",
    )
    config: str = Field(
        default="", description="File with more settings and credentials, present on the driver and on all executors."
    )
    http: str = Field(
        default="",
        description="HTTP address of a broker, http://host:port or https://host:port. [metadata, if it is one]",
    )

    @model_validator(mode="before")
    @classmethod
    def _asks_the_broker_that_reads_metadata(cls, given: Any) -> Any:
        if isinstance(given, dict) and not given.get("http"):
            metadata = given.get("metadata")
            if isinstance(metadata, str) and metadata.startswith(("http://", "https://")):
                return given | {"http": metadata}
        return given

    def require(self, *names: str) -> None:
        """Raise ValueError for a parameter that has no value; for validators of kinds that cannot do without it."""
        for name in names:
            if not getattr(self, name):
                raise ValueError(f"the parameter '{name}' is missing: {type(self).model_fields[name].description}")

    @property
    def computes_little(self) -> bool:
        """Whether the job takes seconds, so that its start matters more than the speed of its code afterwards."""
        return False


class Outcome(StrEnum):
    """Result of a run. PARTLY: some subjects have a problem, the others are done."""

    SUCCEEDED = "succeeded"
    PARTLY = "partly"
    FAILED = "failed"


class Problem(BaseModel):
    """A failure for one subject (a topic, a ledger, an object), in one line for the user."""

    model_config = ConfigDict(frozen=True)

    subject: str
    reason: str
    retry_helps: bool = False


class Summary(BaseModel):
    """The result of a run: the JSON object that `--json` prints, and the source of the operator's status."""

    model_config = ConfigDict(frozen=True)

    kind: str
    run_id: str = ""
    counts: dict[str, int | float] = Field(default_factory=dict)
    """Numbers by name, with the unit last: `ledgers_offloaded`, `size_bytes`."""
    outputs: list[str] = Field(default_factory=list)
    """URLs of the tables and reports that the run wrote."""
    problems: list[Problem] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    """Subjects that the run skipped for a reason that is not a problem."""
    details: dict[str, JsonValue] = Field(default_factory=dict)
    """Results that only this kind has."""

    done: int = Field(default=1, exclude=True)
    """Number of subjects in the desired state; a run with problems and without such a subject has failed."""

    @property
    def outcome(self) -> Outcome:
        """The result that follows from the problems."""
        if not self.problems:
            return Outcome.SUCCEEDED
        return Outcome.PARTLY if self.done else Outcome.FAILED


class Progress(Protocol):
    """Receives the progress of a job; called on the driver, from one thread."""

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        """Begin a stage of `total` units ("bytes", "ledgers"), None if unknown. The previous stage ends."""
        ...

    def advance(self, units: int) -> None:
        """Count `units` more units of the stage as done."""
        ...

    def note(self, line: str) -> None:
        """Show a line to the user at once."""
        ...


def parse_parameters(model: type[P], given: Mapping[str, JsonValue]) -> P:
    """Return the parameters of a kind from the user's values. JobOptionsError lists each wrong parameter and its
    value."""
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        known = sorted(to_camel(name) for name in model.model_fields if name != "run_id")
        lines = [_line(fault["loc"], fault["type"], fault["msg"], fault["input"], known) for fault in error.errors()]
        raise JobOptionsError("; ".join(lines)) from None


def _line(place: tuple[int | str, ...], kind: str, message: str, value: object, known: list[str]) -> str:
    name = ".".join(str(part) for part in place)
    if kind == "extra_forbidden":
        return f"unknown parameter '{name}'; known parameters: {', '.join(known)}"
    if kind == "missing":
        return f"the parameter '{name}' is missing"
    text = message.removeprefix("Value error, ")
    if not name:
        return text
    return f"{name}: {text}" if isinstance(value, dict) else f"{name} = {value!r}: {text}"


def job_name(kind: str, parameters: JobParameters) -> str:
    """Return a name for this kind with these parameters; all runs with the same parameters share it."""
    given = parameters.model_dump(mode="json", exclude={"run_id"}, exclude_defaults=True)
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()
    return f"{kind}-{digest[:_DIGEST_CHARACTERS]}"


def run_id_of(kind: str, parameters: JobParameters, slot: str) -> str:
    """Return the run id of a schedule's slot (its time, RFC 3339). A second start for one slot is the same run."""
    return f"{job_name(kind, parameters)}-{slot}"
