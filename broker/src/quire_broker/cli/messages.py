"""Prints messages that a command has read: their texts for people, all their fields for programs."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from quire_bookie.cli.output import say, say_content
from quire_bookie.cli.tables import Output, print_item
from quire_bookie.control_characters import cell_for_terminal
from quire_bookie.spans import TRACEPARENT, parse_traceparent

if TYPE_CHECKING:
    from quire_client.message import Message


def print_message(message: "Message", output: Output) -> None:
    """Print one message: its text alone; with -o wide one line with its id, publish time, key, trace and text."""
    text = message.payload.decode("utf-8", errors="replace")
    name = str(message.id)
    if output is Output.TABLE:
        say_content(text)
    elif output is Output.WIDE:
        at = datetime.fromtimestamp(message.publish_time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        key = "-" if message.key is None else cell_for_terminal(message.key)
        trace = _trace_of(message.properties)
        say(f"{name}  {at}  {key}  {'' if trace is None else f'trace={trace}  '}{cell_for_terminal(text)}")
    else:
        shown = {
            "id": name,
            "partition": max(0, message.id.partition),
            "key": message.key,
            "properties": message.properties,
            "trace": _trace_of(message.properties),
            "publish_time_ms": message.publish_time_ms,
            "event_time_ms": message.event_time_ms,
            "producer": message.producer_name,
            "sequence_id": message.sequence_id,
            "payload": text,
        }
        print_item({key: value for key, value in shown.items() if value is not None}, output, name=name)


def _trace_of(properties: Mapping[str, str]) -> str | None:
    context = parse_traceparent(properties.get(TRACEPARENT, ""))
    return None if context is None else context.trace_text
