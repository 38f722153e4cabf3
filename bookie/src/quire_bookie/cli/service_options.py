"""Options of every command that runs a service: event loop, level and form of the log. Runs none itself."""

from enum import StrEnum
from typing import Annotated

import typer


class EventLoop(StrEnum):
    """Which implementation of asyncio's loop to run on."""

    AUTO = "auto"
    ASYNCIO = "asyncio"
    UVLOOP = "uvloop"


class LogLevel(StrEnum):
    """How much to log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a line of the log looks."""

    TEXT = "text"
    JSON = "json"


EventLoopOption = Annotated[
    EventLoop, typer.Option("--event-loop", help="auto takes uvloop where it is installed.", envvar="QUIRE_EVENT_LOOP")
]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", help="text for people, json for collectors.", envvar="QUIRE_LOG_FORMAT")
]
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="How much to log.", envvar="QUIRE_LOG_LEVEL")]
