"""The port between a kind of job and what runs it: parameters go in, progress is told, a summary comes out.

A kind is a module with three names, listed in `quire_jobs.main.kinds`:

    KIND = "throughput"                              what `quire jobs run` and the operator call it
    class Parameters(JobParameters): ...             every field described; its docstring begins with a line for `list`
    def run(spark, parameters, progress) -> Summary  on the driver; blocks

Importing the module starts no Spark and no JVM: `quire jobs list` only reads parameters.
`run` raises JobOptionsError or another QuireJobError when nothing could be done; what failed for some subjects only is
a `Problem` of its summary. It must be repeatable: the same `run_id` again, after a crash anywhere, ends in the same
state.
"""

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic.alias_generators import to_camel

from quire_jobs.errors import JobOptionsError

_DIGEST_CHARACTERS = 10
P = TypeVar("P", bound="JobParameters")


class JobParameters(BaseModel):
    """What every kind takes. Keys may be written in snake_case or camelCase; unknown ones are refused.

    Credentials are no parameters: they come from the environment, files or roles, as the clients' usual chains have it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    run_id: str = Field(
        default="", description="Name of this run. The same name again repeats it. [made by what starts it]"
    )
    metadata: str = Field(default="", description="The cluster's metadata, e.g. etcd://host:2379,host:2379.")
    config: str = Field(
        default="", description="File with further settings and credentials, on the driver and on all executors."
    )
    http: str = Field(default="", description="HTTP address of a broker, http://host:port or https://host:port.")


class Outcome(StrEnum):
    """How a run ended. PARTLY: some subjects have a problem, the others are done."""

    SUCCEEDED = "succeeded"
    PARTLY = "partly"
    FAILED = "failed"


class Problem(BaseModel):
    """What could not be done for one subject (a topic, a ledger, an object), in one line for a person."""

    model_config = ConfigDict(frozen=True)

    subject: str
    reason: str
    retry_helps: bool = False


class Summary(BaseModel):
    """What a run did. One JSON object on standard output with `--json`, and what the operator shows in status."""

    model_config = ConfigDict(frozen=True)

    kind: str
    run_id: str = ""
    counts: dict[str, int | float] = Field(default_factory=dict)
    """Numbers by name, units last: `ledgers_offloaded`, `size_bytes`."""
    outputs: list[str] = Field(default_factory=list)
    """URLs of what was written: tables, reports."""
    problems: list[Problem] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    """What was left alone, and why, that is no problem."""
    details: dict[str, JsonValue] = Field(default_factory=dict)
    """What is particular to the kind."""

    done: int = Field(default=1, exclude=True)
    """Number of subjects that are as they should be; with problems and 0 the run has failed."""

    @property
    def outcome(self) -> Outcome:
        """As the problems say."""
        if not self.problems:
            return Outcome.SUCCEEDED
        return Outcome.PARTLY if self.done else Outcome.FAILED


class Progress(Protocol):
    """Where a job tells how far it is; on the driver, from one thread."""

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        """A new stage of so many units ("bytes", "ledgers"); None: not known. It ends the one before."""
        ...

    def advance(self, units: int) -> None:
        """So many more units of the stage are done."""
        ...

    def note(self, line: str) -> None:
        """Something that a person wants to know now."""
        ...


def parse_parameters(model: type[P], given: Mapping[str, JsonValue]) -> P:
    """The parameters of a kind from what a person gave. JobOptionsError: all that is wrong, each with its value."""
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        known = sorted(to_camel(name) for name in model.model_fields if name != "run_id")
        lines = [_line(fault["loc"], fault["type"], fault["msg"], fault["input"], known) for fault in error.errors()]
        raise JobOptionsError("; ".join(lines)) from None


def _line(place: tuple[int | str, ...], kind: str, message: str, value: object, known: list[str]) -> str:
    name = ".".join(str(part) for part in place)
    if kind == "extra_forbidden":
        return f"there is no parameter '{name}'; there are: {', '.join(known)}"
    if kind == "missing":
        return f"the parameter '{name}' is missing"
    text = message.removeprefix("Value error, ")
    return f"{name}: {text}" if not name or isinstance(value, dict) else f"{name} = {value!r}: {text}"


def job_name(kind: str, parameters: JobParameters) -> str:
    """The same for the same kind with the same parameters, whichever run it is."""
    given = parameters.model_dump(mode="json", exclude={"run_id"}, exclude_defaults=True)
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()
    return f"{kind}-{digest[:_DIGEST_CHARACTERS]}"


def run_id_of(kind: str, parameters: JobParameters, slot: str) -> str:
    """The run of a schedule's slot (its time, RFC 3339): a second start for one slot is the same run."""
    return f"{job_name(kind, parameters)}-{slot}"
