"""The kinds of jobs. A new kind needs one line here and one module (see `quire_jobs.job`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, get_args

from quire_jobs.errors import JobOptionsError
from quire_jobs.job import JobParameters, Progress, Summary

MODULES: Mapping[str, str] = {
    "audit": "quire_jobs.analytics.audit",
    "backlog": "quire_jobs.analytics.backlog",
    "compact": "quire_jobs.compaction.job",
    "cost": "quire_jobs.analytics.cost",
    "keys": "quire_jobs.analytics.keys",
    "offload": "quire_jobs.offload.job",
    "retention-what-if": "quire_jobs.analytics.retention_what_if",
    "schema-drift": "quire_jobs.analytics.schema_drift",
    "table": "quire_jobs.lake.job",
    "throughput": "quire_jobs.analytics.throughput",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """One loaded kind, with its `run(spark, parameters, progress)`."""

    name: str
    text: str
    parameters: type[JobParameters]
    run: Callable[[Any, Any, Progress], Summary]


@dataclass(frozen=True, slots=True)
class ShownParameter:
    """A parameter as `quire jobs list` shows it. `default`: as text; None for a required parameter."""

    name: str
    type: str
    default: str | None
    text: str


def load_kind(name: str) -> Kind:
    """Return the kind of this name. JobOptionsError lists the known kinds."""
    if name not in MODULES:
        raise JobOptionsError(f"unknown kind of job '{name}'; known kinds: {', '.join(sorted(MODULES))}")
    module = import_module(MODULES[name])
    assert name == module.KIND, f"{MODULES[name]} declares the kind {module.KIND}"
    model: type[JobParameters] = module.Parameters
    return Kind(name, (model.__doc__ or "").strip().partition("\n")[0], model, module.run)


def shown_parameters(model: type[JobParameters]) -> list[ShownParameter]:
    """Return all parameters of a kind except the run id, required ones first."""
    fields = [(model.model_config["alias_generator"], name, field) for name, field in model.model_fields.items()]
    shown = [
        ShownParameter(
            field.alias or name,
            _type(field.annotation),
            None if field.is_required() else _default(field.get_default(call_default_factory=True)),
            field.description or "",
        )
        for _, name, field in fields
        if name != "run_id"
    ]
    return sorted(shown, key=lambda each: (each.default is not None, each.name))


def is_list(model: type[JobParameters], key: str) -> bool:
    """Return whether a parameter, in either spelling, takes several values."""
    for name, field in model.model_fields.items():
        if key in (name, field.alias):
            return getattr(field.annotation, "__origin__", None) in (list, tuple, frozenset, set)
    return False


def _type(annotation: Any) -> str:
    if getattr(annotation, "__origin__", None) is not None and annotation.__module__ != "typing":
        inner = ", ".join(_type(each) for each in get_args(annotation) if each is not ...)
        return f"{annotation.__origin__.__name__} of {inner}"
    options = [each for each in get_args(annotation) if each is not type(None)]
    if options:
        return " or ".join(_type(each) if isinstance(each, type) else str(each) for each in options)
    return str(getattr(annotation, "__name__", annotation))


def _default(value: Any) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(str(each) for each in value)
    return str(value)
