"""The argument of commands that names a topic, and what a shell completes it to.

A shell waits for a completion, so it has a bound in time and in number, and without an answer there is none: it prints
no error. A lookup of a host name is not interrupted.
"""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer

from quire_bookie.cli.profiles import use_profile
from quire_bookie.cli.rest import DEFAULT_HTTP, get
from quire_bookie.errors import QuireError
from quire_broker.cli.admin_paths import namespace_of, topics_path
from quire_broker.names import parse_topic

TIMEOUT_S = 2.0
TOPICS_MAX = 200
_PARTITION = re.compile(r"-partition-\d+$")


def completed(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of existing topics that begin like this one: `my-topic`, or `tenant/namespace/topic`."""
    try:
        with _within(TIMEOUT_S):
            return _names(_address(context), incomplete)[:TOPICS_MAX]
    except (QuireError, OSError):
        return []


def _address(context: typer.Context) -> str:
    """Return --http if it was given, else that of the environment, the profile or the default."""
    source = context.get_parameter_source("http")
    if source is not None and source.name == "COMMANDLINE":
        return str(context.params["http"])
    if profile := context.find_root().params.get("profile"):
        context.call_on_close(use_profile(profile, os.environ))
    return os.environ.get("QUIRE_HTTP", DEFAULT_HTTP)


def _names(http: str, incomplete: str) -> list[str]:
    namespace, separator, _ = incomplete.rpartition("/")
    if ":" in incomplete or namespace.count("/") > 1:
        return []
    found = {parse_topic(name) for name in get(http, topics_path(namespace_of(namespace or "public/default")))}
    prefix = f"{namespace}{separator}"
    names = {prefix + _PARTITION.sub("", topic.local) for topic in found}
    return sorted(name for name in names if name.startswith(incomplete))


@contextmanager
def _within(timeout_s: float) -> Iterator[None]:
    """Raise TimeoutError from whatever runs when the time is over."""

    def expired(*_: object) -> NoReturn:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


Topic = Annotated[
    str,
    typer.Argument(
        help="Topic, e.g. my-topic or persistent://public/default/my-topic.",
        autocompletion=completed,
    ),
]
