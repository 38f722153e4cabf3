"""Merges flags, environment, a file and defaults into one checked model, and records the origin of each value.

Precedence: flag, then environment (`QUIRE_<key>`, in the spelling of the key or in upper snake case), then the file
(TOML, YAML or BookKeeper's own .conf), then the default. Every error names the key, the value, its origin and the
remedy.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model, model_validator

from quire_bookie.config.files import PROPERTIES, parse_file
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.settings.declared import Setting, settings_of

ENVIRONMENT_PREFIX = "QUIRE_"
SECRET: dict[str, Any] = {"secret": True}
NO_EFFECT = "no effect"
HIDDEN = "(set, not shown)"
ALMOST = 0.9
"""Similarity of a misspelled variable; QUIRE_PORT and QUIRE_HTTP_PORT have 0.8."""
_WORD = re.compile(r"""(?:(?<![\S])|(?<=[("'])|(?<=--))\w+(?=[\s),;='"]|[:.](?:\s|$)|$)""")
"""A word of a message that may be a key; not a part of a URL or a path."""


S = TypeVar("S")


if TYPE_CHECKING:  # pydantic's metaclass has no public name
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class _WithSettings(ModelMetaclass):
    """Gives a model a field for each setting of the classes in its `SETTINGS`."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        """Create the model, above one with the declared settings."""
        known = {field for base in bases for field in getattr(base, "model_fields", ())}
        declared: dict[str, Any] = {}
        for each in namespace.get("SETTINGS", ()):
            for setting in settings_of(each).values():
                if setting.short not in known:
                    declared[setting.short] = (setting.kind, _field_of(setting))
        if declared:
            bases = (create_model(f"{name}Settings", __base__=bases, __module__=__name__, **declared),)
        return super().__new__(mcs, name, bases, namespace, **options)


def _field_of(setting: Setting) -> Any:
    extra = SECRET if setting.secret else None
    return Field(
        setting.default, alias=setting.key, description=setting.description, json_schema_extra=extra, **setting.range
    )


class ProcessConfig(BaseModel, metaclass=_WithSettings):
    """Base of the settings of one kind of process: frozen, unknown keys rejected, both spellings accepted.

    `SETTINGS` names classes of `quire_bookie.settings` (or of the broker): the model has their keys, and `part` returns
    their values. Fields of the model itself are those that a process interprets: addresses, folders, TLS.
    """

    SETTINGS: ClassVar[tuple[type, ...]] = ()
    # Built on first use, not at declaration: of a chain of models only the last one is used.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        validate_default=True,
        defer_build=True,
        allow_inf_nan=False,
    )

    @model_validator(mode="after")
    def _parts_are_valid(self) -> "ProcessConfig":
        for each in self._settings_classes():
            try:
                self.part(each)
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return self

    @classmethod
    def _settings_classes(cls) -> tuple[type, ...]:
        """Return the classes in `SETTINGS` of this model and of its bases."""
        return tuple(dict.fromkeys(each for base in cls.__mro__ for each in base.__dict__.get("SETTINGS", ())))

    def part(self, wanted: type[S], **given: Any) -> S:
        """Return the settings of one class in `SETTINGS`, in its units. `given`: fields that have no key.

        A field that is itself one of these classes is filled in too.
        """
        known = self._settings_classes()
        assert wanted in known, f"{wanted.__name__} is not in SETTINGS of {type(self).__name__}"
        declared: type = wanted
        values = {name: one.to_field(getattr(self, one.short)) for name, one in settings_of(declared).items()}
        for each in fields(wanted):  # type: ignore[arg-type]  # a settings class is a dataclass
            inner: Any = each.default_factory
            if inner in known and each.name not in given:
                values[each.name] = self.part(inner)
        return wanted(**(values | given))

    @classmethod
    def key_of(cls, field: str) -> str:
        """Return the key by which operators know a field."""
        return cls.model_fields[field].alias or field

    def shown(self) -> dict[str, Any]:
        """Return key and value of every setting for display; secrets that are set are HIDDEN.

        A field is marked as a secret by `Field(..., json_schema_extra=SECRET)`.
        """
        found = {}
        for name, info in type(self).model_fields.items():
            value = getattr(self, name)
            found[self.key_of(name)] = HIDDEN if value and info.json_schema_extra == SECRET else value
        return found

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield name and value of every field for `repr`; secrets that are set are HIDDEN."""
        for name, info in type(self).model_fields.items():
            value = getattr(self, name)
            yield name, HIDDEN if value and info.json_schema_extra == SECRET else value

    @classmethod
    def field_of(cls, key: str) -> str | None:
        """Return the field of a key in either spelling, or None."""
        for name, info in cls.model_fields.items():
            if key in (name, info.alias):
                return name
        return None

    @classmethod
    def may_be_none(cls, key: str) -> bool:
        """Return whether an empty value means none, such as no port, and not that the key is not given."""
        name = cls.field_of(key)
        if name is None:
            return False
        info = cls.model_fields[name]
        reads_empty = any(isinstance(one, BeforeValidator) for one in info.metadata)
        return reads_empty and type(None) in get_args(info.annotation)

    @classmethod
    def from_java_file(cls, found: dict[str, Any]) -> dict[str, Any]:
        """Adapt the keys of a .conf file of the Java system; a model that knows older keys replaces them by ours."""
        return found

    @property
    def doubts(self) -> list[str]:
        """What the start reports about these settings: they are valid, but probably a mistake, or have no effect.

        A field that exists only for files of the Java system has `Field(..., json_schema_extra={NO_EFFECT: reason})`.
        """
        found = []
        for name, info in type(self).model_fields.items():
            extra = info.json_schema_extra
            if name in self.model_fields_set and isinstance(extra, dict) and NO_EFFECT in extra:
                found.append(f"{self.key_of(name)} has no effect: {extra[NO_EFFECT]}")
        return found

    @classmethod
    def without_effect(cls, keys: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return what to report about keys of the Java system that have no effect, and the keys that are not known."""
        return [], list(keys)

    @classmethod
    def missed(cls, keys: Iterable[str]) -> list[str]:
        """Return those of these keys of other kinds of process that a user expects to have an effect here."""
        return []


C = TypeVar("C", bound=ProcessConfig)


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a value, as displayed text."""

    text: str


DEFAULT = Origin("default")


@dataclass(frozen=True, slots=True)
class Loaded(Generic[C]):
    """Holds the checked settings and the origin of each field.

    `ignored`: unknown keys of a .conf file, which was written for the Java system. `of_others`: keys of the file that
    only other kinds of process have. `misspelled`: environment variables that are almost settings, each with the name
    of the setting; a variable of another program may look like that.
    """

    config: C
    origins: Mapping[str, Origin]
    ignored: tuple[str, ...] = ()
    of_others: tuple[str, ...] = ()
    misspelled: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> list[tuple[str, Any, str, str]]:
        """Return key, displayed value, origin and description of every setting, in the model's order."""
        return [
            (key, value, self.origins[name].text, info.description or "")
            for (key, value), (name, info) in zip(
                self.config.shown().items(), type(self.config).model_fields.items(), strict=True
            )
        ]


def load(
    model: type[C],
    *,
    flags: Mapping[str, Any],
    assigned: Mapping[str, Any] | None = None,
    environment: Mapping[str, str],
    file: Path | None = None,
    also_known: frozenset[str] = frozenset(),
) -> Loaded[C]:
    """Merge and check. `flags` maps field names to values, None meaning *not given*; `assigned` is what `--set` gave.

    `also_known`: keys of other kinds of process, which one shared file may contain. Raises ConfigError.
    """
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = dict.fromkeys(model.model_fields, DEFAULT)
    from_file, ignored, of_others = _from_file(model, file, also_known)
    for source in (
        from_file,
        _from_environment(model, environment),
        {n: (v, Origin(f"--set {model.key_of(n)}")) for n, v in (assigned or {}).items()},
        {n: (v, Origin("flag --" + n.replace("_", "-"))) for n, v in flags.items() if v is not None},
    ):
        for name, (value, origin) in source.items():
            values[name] = value
            origins[name] = origin
    try:
        return Loaded(model(**values), origins, ignored, of_others, _misspelled(model, environment))
    except ValidationError as error:
        raise ConfigError(_explain(model, error, origins)) from error


def _from_file(
    model: type[ProcessConfig], file: Path | None, also_known: frozenset[str]
) -> tuple[dict[str, tuple[Any, Origin]], tuple[str, ...], tuple[str, ...]]:
    if file is None:
        return {}, (), ()
    found: dict[str, tuple[Any, Origin]] = {}
    ignored: list[str] = []
    of_others: list[str] = []
    given = parse_file(file)
    if file.suffix in PROPERTIES:  # such files list keys without values, which are not given
        given = model.from_java_file({key: value for key, value in given.items() if value or model.may_be_none(key)})
    for key, value in given.items():
        name = model.field_of(key)
        if name is not None:
            found[name] = (value, Origin(f"file {file}"))
        elif key in also_known:
            of_others.append(key)
        elif file.suffix in PROPERTIES:
            ignored.append(key)
        elif isinstance(value, dict):
            raise ConfigError(f"{file}: '{key}' is a table; write its settings at the top level, without a table")
        else:
            raise ConfigError(f"{file}: unknown setting '{key}'{suggestion(model, key)}")
    return found, tuple(ignored), tuple(of_others)


def _from_environment(model: type[ProcessConfig], environment: Mapping[str, str]) -> dict[str, tuple[Any, Origin]]:
    found: dict[str, tuple[Any, Origin]] = {}
    for name in model.model_fields:
        for spelling in _variables(model, name):
            if spelling in environment:
                found[name] = (environment[spelling], Origin(f"environment {spelling}"))
    return found


def _variables(model: type[ProcessConfig], name: str) -> tuple[str, str]:
    """Return the environment variables of a field."""
    return ENVIRONMENT_PREFIX + name.upper(), ENVIRONMENT_PREFIX + model.key_of(name)


def _misspelled(model: type[ProcessConfig], environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that are almost those of a setting, and the setting's."""
    ours = [variable for variable in environment if variable.startswith(ENVIRONMENT_PREFIX)]
    known = {spelling for name in model.model_fields for spelling in _variables(model, name)} if ours else set()
    unknown = [variable for variable in ours if variable not in known]
    if not unknown:
        return {}
    import difflib  # imported only for them

    close = {variable: difflib.get_close_matches(variable, known, n=1, cutoff=ALMOST) for variable in unknown}
    return {variable: found[0] for variable, found in close.items() if found}


def suggestion(model: type[ProcessConfig], key: str) -> str:
    """Return the end of an error about an unknown key: the likely intended key, or the command that lists all."""
    close = closest(model, key)
    return f"; did you mean '{close}'?" if close else "; `quire config show PROCESS` lists the settings of a process"


def closest(model: type[ProcessConfig], key: str, similarity: float = 0.6) -> str | None:
    """Return the key that was likely intended by an unknown one."""
    import difflib  # imported only for an error

    known = [spelling for name in model.model_fields for spelling in {name, model.key_of(name)}]
    return next(iter(difflib.get_close_matches(key, known, n=1, cutoff=similarity)), None)


def _origins_in(model: type[ProcessConfig], message: str, origins: Mapping[str, Origin]) -> str:
    """Return the origins of the settings that a message names: which of them did the user set?"""
    words = set(_WORD.findall(message))
    found = {model.key_of(name): origins[name].text for name in model.model_fields if model.key_of(name) in words}
    return f" ({', '.join(f'{key} is from {text}' for key, text in found.items())})" if found else ""


def _explain(model: type[ProcessConfig], error: ValidationError, origins: Mapping[str, Origin]) -> str:
    lines = []
    for problem in error.errors():
        key = str(problem["loc"][0]) if problem["loc"] else ""
        name = model.field_of(key)
        message = problem["msg"].removeprefix("Value error, ").replace("Input should", "it must", 1)
        if name is None:
            lines.append(message + _origins_in(model, message, origins))
        else:
            origin = origins[name].text
            info = model.model_fields[name]
            value = HIDDEN if info.json_schema_extra == SECRET else repr(problem["input"])
            text = f"{message[:1].lower()}{message[1:]} ({info.description})"
            lines.append(f"{model.key_of(name)} = {value} (from {origin}): {text}")
    return "; ".join(lines)
