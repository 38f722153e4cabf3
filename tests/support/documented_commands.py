"""Checks of commands in the documentation by what parses them in earnest, without running them.

`fault_of` returns the fault of a command. Each program has a function below; a program without one must be in
`OTHERS`, whose arguments are not ours.
"""

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer
import yaml

from quire_bookie import __version__
from quire_bookie.cli.main import UsageFault, build
from quire_bookie.cli.settings import parse_settings
from quire_bookie.errors import QuireError
from quire_jobs.errors import QuireJobError
from quire_jobs.job import parse_parameters
from quire_jobs.main.jobs import assigned
from quire_jobs.main.kinds import load_kind
from quire_operator.kubectl.main import parser as kubectl_quire
from scripts.reference.routes import tables
from tests.compat.admin.commands import LINES, policy_lines
from tests.unit.charts.rendering import CHART, KUBE_VERSION, helm

ROOT = Path(__file__).resolve().parents[2]
OTHERS = frozenset(
    (
        *("cd", "cat", "echo", "export", "grep", "jq", "open", "printf", "rm", "sed", "source", "true", "base64"),
        *("htpasswd", "keytool", "kind", "openssl", "operator-sdk", "sha256sum", "ssh-keygen"),
    )
)
"""Programs of others, and of the shell."""
BUILT_IN = frozenset(
    ("namespace", "secret", "deployment", "statefulset", "cronjob", "job", "pod", "pvc", "crd", "endpointslices", "pv")
)
"""Resources of Kubernetes that the pages name."""
IMAGE = re.compile(r"\bquire-(?:operator|bookie|broker|jobs)(?:-bundle)?:([\w.]+)")
_CALLS = (ValueError, TypeError, QuireError, QuireJobError, SystemExit, UsageFault)


def fault_of(words: list[str]) -> str | None:
    """Return the fault of a command of the documentation, or None."""
    program = words[0].rpartition("/")[2] if words[0].startswith(".venv/") else words[0]
    check = CHECKS.get(program)
    if check is None and program not in OTHERS and not (ROOT / program).is_file():
        return f"the program `{program}` is unknown: check its arguments, or add it to OTHERS"
    try:
        for version in IMAGE.findall(" ".join(words)):
            if version != __version__:
                raise ValueError(f"the images have the version {__version__}")
        if check is not None:
            check(words[1:])
    except _CALLS as error:
        return f"{' '.join(words)}: {getattr(error, 'message', None) or error}"
    return None


def quire(words: list[str]) -> None:
    """Parse a command line of `quire`, with its settings and the parameters of a job."""
    words = [word for before, word in pairwise(["", *words]) if word != "..." or before.startswith("--")]
    context = _quire_context(words)
    given = context.params
    kind = {"quire bookie start": "bookie", "quire broker start": "broker"}.get(
        context.command_path, context.command_path.removeprefix("quire ")
    )
    commands = _commands()
    if kind in commands.config_kinds:
        parse_settings(commands, commands.config_model(kind), given.get("settings") or given.get("set_"))
    if context.command_path == "quire jobs run":
        _job(given["kind"], given["parameters"] or [])


def _quire_context(words: list[str]) -> Any:
    """Return the context of the innermost command. UsageFault: no command has these words."""
    command: Any = typer.main.get_command(_commands().app)
    context = command.make_context("quire", list(words))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        if not rest:
            raise ValueError("a command is missing")
        name, command, rest = command.resolve_command(context, rest)
        try:
            context = command.make_context(name, rest, parent=context)
        except UsageFault as fault:
            if "does not exist" not in str(fault):  # a file of the reader's
                raise
            return command.make_context(name, rest, parent=context, resilient_parsing=True)
    return context


@functools.cache
def _commands() -> Any:
    found = build()
    found.add_others()
    return found


def _job(kind: str, parameters: list[str]) -> None:
    model = load_kind(kind).parameters
    given = assigned(model, parameters)
    if not any("..." in each for each in parameters):
        parse_parameters(model, {"metadata": "etcd://etcd:2379", "http": "http://broker:8080", **given})
        return
    known = {info.alias or name for name, info in model.model_fields.items()}
    if unknown := given.keys() - known:
        raise ValueError(f"no parameters of {kind}: {sorted(unknown)}")


def make(words: list[str]) -> None:
    """Find the target, and parse the arguments that it passes on."""
    targets = [word for word in words if "=" not in word]
    known = set(re.findall(r"^([a-z][\w-]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    if missing := set(targets) - known:
        raise ValueError(f"no targets of the Makefile: {sorted(missing)}")
    for word in words:
        for path in re.findall(r"\btests/[\w/.]+", word):
            if not (ROOT / path).exists():
                raise ValueError(f"{path} does not exist")


def curl(words: list[str]) -> None:
    """Find a route of a broker, proxy, bookie or auto-recovery for the method and the path."""
    method = "POST" if {"-d", "--data"} & set(words) else "GET"
    for option in ("-X", "--request"):
        if option in words:
            method = words[words.index(option) + 1]
    for url in (word for word in words if word.startswith(("http://", "https://", ".../"))):
        path = "/" + url.removeprefix(".../") if url.startswith(".../") else urlsplit(url).path
        if not any(route.method == method and _pattern(route.path).fullmatch(path) for route in _routes()):
            raise ValueError(f"no route for {method} {path}")


@functools.cache
def _routes() -> tuple[Any, ...]:
    """Return all routes, without the one that refuses every other path of the admin API."""
    return tuple(route for routes in tables().values() for route in routes if route.path != "/admin/{path:.*}")


@functools.cache
def _pattern(path: str) -> "re.Pattern[str]":
    """Return the pattern of a route's path; a name in braces of a page stands for a part of it."""
    text = ""
    for plain, given, pattern in re.findall(r"([^{}]+)|\{\w+(:(?:[^{}]|\{[^{}]*\})*)?\}()", path):
        text += re.escape(plain) if plain else f"(?:{given[1:] or '[^/]+'}|{{\\w+}}){pattern}"
    return re.compile(text)


def kubectl(words: list[str]) -> None:
    """Parse `kubectl quire`; else find files, resources, fields of patches and of columns in CRDs and builders."""
    words = _without_options(words, ("-n", "--namespace"))
    if words[0] == "quire":
        if words[1:] != ["-h"]:
            kubectl_quire().parse_args(words[1:])
        return
    if "--" in words and any(IMAGE.search(word) for word in words):
        quire(words[words.index("--") + 1 :])
    for option in ("-f", "--filename"):
        if option in words:
            name = words[words.index(option) + 1]
            if not (ROOT / name).exists() and not _is_written(name):
                raise ValueError(f"{name} does not exist")
    named = list(_resources(words))
    for kind in named:
        if kind not in BUILT_IN and kind.removesuffix("s") not in BUILT_IN and kind not in _crds():
            raise ValueError(f"unknown resource '{kind}'")
    schemas = [_crds()[kind] for kind in named if kind in _crds()]
    for word in words if schemas else ():
        if word.startswith('{"'):
            _must_know(schemas, json.loads(word))
        for path in re.findall(r"\{\.(status(?:\.\w+)+)\}", word):
            value: Any = None
            for name in reversed(path.split(".")):
                value = {name: value}
            _must_know(schemas, value)


def _is_written(name: str) -> bool:
    """Return whether a page writes the file itself."""
    return any(f"> {name}" in page.read_text() for page in (ROOT / "docs").rglob("*.md"))


def _without_options(words: list[str], options: tuple[str, ...]) -> list[str]:
    kept = list(words)
    for option in options:
        while option in kept:
            at = kept.index(option)
            del kept[at : at + 2]
    return kept


_VERBS = frozenset(("get", "describe", "delete", "patch", "annotate", "scale", "wait", "create", "label", "rollout"))


def _resources(words: list[str]) -> Iterator[str]:
    """Yield the kinds of resource that a command names."""
    plain = [word for word in words[1:] if not word.startswith("-")]
    if words[0] not in _VERBS or not plain or {"-f", "--filename"} & set(words):
        return
    if words[0] == "create":
        kinds = plain[:1]
    elif words[0] == "rollout":
        kinds = plain[1:2]
    elif "/" in plain[0]:
        kinds = [word for word in plain if "/" in word and "." not in word and "=" not in word]
    else:
        kinds = plain[0].split(",")
    yield from (kind.partition("/")[0] for kind in kinds)


@functools.cache
def _crds() -> Mapping[str, Any]:
    """Return the schema of each resource of ours, by its names."""
    found = {}
    for path in (ROOT / "crds").glob("*.yaml"):
        crd = yaml.load(path.read_text(), yaml.CSafeLoader)["spec"]
        names = crd["names"]
        for name in (names["plural"], names["singular"], *names.get("shortNames", ())):
            found[name] = crd["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def _must_know(schemas: list[Any], value: Any) -> None:
    faults = [list(unknown_fields(schema, value)) for schema in schemas]
    if all(faults):
        raise ValueError(f"no field of the resource: {min(faults, key=len)}")


def unknown_fields(schema: Any, value: Any, place: str = "") -> Iterator[str]:
    """Yield the fields of a resource, or of a part of one, that its schema does not have."""
    if isinstance(value, list):
        for each in value:
            yield from unknown_fields(schema.get("items", {}), each, place)
    elif isinstance(value, dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        properties, more = schema.get("properties", {}), schema.get("additionalProperties")
        for name, each in value.items():
            here = f"{place}.{name}"
            if name in properties:
                yield from unknown_fields(properties[name], each, here)
            elif isinstance(more, dict):
                yield from unknown_fields(more, each, here)
            elif not more and not (place == ".metadata" or (not place and name in ("apiVersion", "kind"))):
                yield here


def fits_a_resource(value: Any) -> list[str]:
    """Return the unknown fields of a page's YAML; it may be a resource, its spec or a field of one. [] if it fits."""
    schemas = list({id(schema): schema for schema in _crds().values()}.values())
    specs = [schema["properties"]["spec"] for schema in schemas]
    jobs = [each for spec in specs for each in _nested(spec)]
    faults = [list(unknown_fields(schema, value)) for schema in (*schemas, *specs, *jobs)]
    return [] if [] in faults else min(faults, key=len)


def _nested(schema: Any) -> Iterator[Any]:
    """Yield the schemas of the fields of a schema that are objects."""
    for each in schema.get("properties", {}).values():
        if "properties" in each:
            yield each


def helm_command(words: list[str]) -> None:
    """Render the chart with the values of `helm install` or `upgrade`. Skips the test where there is no Helm."""
    words = _without_options(words, ("--namespace", "-n", "--version"))
    if words[0] in ("test", "uninstall", "registry"):
        return
    if words[0] not in ("install", "upgrade"):
        raise ValueError(f"`helm {words[0]}` is not checked")
    options = []
    for option, value in zip(words, [*words[1:], ""], strict=True):
        if option in ("--values", "-f", "--set"):
            options += [option, str(ROOT / value) if option != "--set" else value]
        elif option == "--reuse-values" or not option.startswith("-"):
            continue
        else:
            raise ValueError(f"the option {option} is not checked")
    known = {"images.registry", *_keys(yaml.safe_load((CHART / "values.yaml").read_text()))}
    for value in (each for each in options if "=" in each):
        key = re.sub(r"\[\d+\].*", "", value.partition("=")[0])
        if key not in known:
            raise ValueError(f"the chart has no value {key}")
    rendered = helm("template", "quire", str(CHART), "--kube-version", KUBE_VERSION, *options)
    if rendered.returncode:
        raise ValueError(rendered.stderr)


def _keys(values: Mapping[str, Any], place: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield place + key
        if isinstance(value, dict):
            yield from _keys(value, f"{place}{key}.")


def python(words: list[str]) -> None:
    """Compile the text of `python -c`; a module must exist."""
    if words[0] == "-c":
        compile(words[1], "python -c", "exec")
    elif words[0] != "-m":
        raise ValueError("neither -c nor -m")


def docker(words: list[str]) -> None:
    """Parse what a container of an image of ours runs."""
    for at, word in enumerate(words):
        if words[0] == "run" and IMAGE.fullmatch(word):
            quire(words[at + 1 :])


def pulsar_admin(words: list[str]) -> None:
    """Find a command with these words and options among those that tests/compat/admin runs."""
    options = {word for word in words if word.startswith("-")}
    for line in (*LINES, *policy_lines([" ".join(words[:2])])):
        run = line.split()
        if words[:2] in (run[:2], run[1:3]) and options <= set(run):
            return
    raise ValueError(f"tests/compat/admin runs no command {' '.join([*words[:2], *sorted(options)])}")


def systemd(text: str) -> None:
    """Parse the program that a unit starts."""
    for line in re.findall(r"^ExecStart=quire (.*)$", text, re.MULTILINE):
        quire(re.sub(r"%\w", "1", line).split())


CHECKS: Mapping[str, Callable[[list[str]], None]] = {
    "quire": quire,
    "make": make,
    "curl": curl,
    "kubectl": kubectl,
    "helm": helm_command,
    "python": python,
    "docker": docker,
    "pulsar-admin": pulsar_admin,
}
