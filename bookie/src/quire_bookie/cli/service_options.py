"""Defines the options of every command that runs a service: event loop, log level and log format. Runs none itself."""

from enum import StrEnum
from typing import Annotated

import typer


class EventLoop(StrEnum):
    """Implementation of the asyncio loop."""

    AUTO = "auto"
    ASYNCIO = "asyncio"
    UVLOOP = "uvloop"


class LogLevel(StrEnum):
    """Minimum level of logged events."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """Format of a log line."""

    TEXT = "text"
    JSON = "json"


EventLoopOption = Annotated[
    EventLoop, typer.Option("--event-loop", help="auto uses uvloop if it is installed.", envvar="QUIRE_EVENT_LOOP")
]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", help="text for people, json for collectors.", envvar="QUIRE_LOG_FORMAT")
]
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="Minimum level.", envvar="QUIRE_LOG_LEVEL")]
