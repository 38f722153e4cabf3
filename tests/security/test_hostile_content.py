"""What clients, buckets and peers can put into messages, names, backups and ledgers, as our commands meet it."""

import asyncio
import json
import os
import pty
import subprocess
from collections.abc import Iterator

import pytest

from quire_bookie.cli.output import say
from quire_bookie.cli.tables import print_facts, print_json, print_table
from quire_broker.errors import InvalidTopicNameError
from quire_broker.names import parse_namespace, parse_topic
from quire_broker.wire.entry import seal
from quire_broker.wire.hot import encode_send
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_process import BrokerProcess
from tests.support.broker_wire import TOPIC, Wire
from tests.support.standalone import QUIRE, environment

pytestmark = pytest.mark.xdist_group("hostile content")  # of one process
ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj\r\x08ok"
"""A title of the window, an empty screen, a colour by C1, a turned direction, and characters that overwrite a line."""
ACTED_ON = ("\x1b", "\x07", "\x9b", "\u202e", "\x08")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    found = BrokerProcess(tmp_path_factory.mktemp("hostile"))
    asyncio.run(publish(found.port))
    yield found
    found.close()


async def publish(port: int) -> None:
    """Messages whose payload, key, property and producer's name are attacks, and batches that are none."""
    wire = await Wire.reach(port)
    await wire.connect()
    await wire.lookup()
    assert (await wire.produce()).type == Kind.PRODUCER_SUCCESS
    metadata = pb.MessageMetadata(producer_name=f"p{ATTACK}", sequence_id=0, publish_time=1, partition_key=ATTACK)
    metadata.properties.add(key=ATTACK, value=ATTACK)
    wire.writer.write(encode_send(1, 0, seal(metadata, ATTACK.encode())))
    answer = await wire.next()
    assert isinstance(answer, pb.BaseCommand)
    assert answer.type == Kind.SEND_RECEIPT, answer
    wire.writer.close()


def on_terminal(*words: str) -> str:
    """Run a command on a terminal and return its output of both streams."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([QUIRE, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment()) as process:
        os.close(theirs)
        found = bytearray()
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux reports that the other end is closed
                break
            if not part:
                break
            found += part
        process.wait(60)
    os.close(ours)
    return found.decode(errors="replace").replace("\r\n", "\n")


def harmless(text: str) -> bool:
    """Return whether nothing of the attack reaches the terminal; styles of Quire's own tables may."""
    plain = text.replace("\x1b[1m", "").replace("\x1b[0m", "")
    return not any(one in plain for one in ACTED_ON)


def test_a_terminal_does_not_act_on_messages(broker: BrokerProcess) -> None:
    for form in ("table", "wide", "json", "yaml"):
        shown = on_terminal("consume", TOPIC, "--broker", broker.url, "-o", form)
        assert "owned" in shown, shown
        assert harmless(shown), ascii(shown)
    [ledger] = [row["ledgerId"] for row in broker.rest("GET", "/admin/quire/ledgers")["ledgers"]][:1]
    for options in ((), ("--text",), ("--hex",), ("-o", "json"), ("-o", "yaml")):
        shown = on_terminal("ledger", "read", str(ledger), "--http", broker.http, *options)
        assert harmless(shown), ascii(shown)
    shown = on_terminal("consume", f"{TOPIC}\x1b[2J", "--broker", broker.url)
    assert harmless(shown), "an error that repeats a name: " + ascii(shown)


def test_a_pipe_gets_the_payload_as_it_is(broker: BrokerProcess) -> None:
    command = [QUIRE, "consume", TOPIC, "--broker", broker.url]
    done = subprocess.run(command, capture_output=True, env=environment(), timeout=60, check=True)
    assert done.stdout.decode() == ATTACK + "\n"


def test_texts_chosen_by_others_are_escaped_wherever_they_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "[bold]"), [(f"{ATTACK}\nforged", "[/]"), (1, None)])
    print_facts({"name": f"{ATTACK}\nforged"})
    print_json({"name": ATTACK})
    say(ATTACK)
    say(ATTACK, err=True)
    captured = capsys.readouterr()
    for text in captured:
        assert harmless(text)
        assert "\\x1b[2J" in text
    assert "\\x1b[2J\\x9b31m\\u202egpj\\r\\x08ok\\nforged" in captured.out, "a name begins no line of its own"
    printed = captured.out[captured.out.index("{") : captured.out.index("}") + 1]
    assert json.loads(printed) == {"name": ATTACK}


@pytest.mark.parametrize("name", ["persistent://public/default/..", "persistent://public/default/."])
def test_a_topic_is_not_named_like_a_step_of_a_path(name: str) -> None:
    with pytest.raises(InvalidTopicNameError, match="admin paths"):
        parse_topic(name).require_creatable()


@pytest.mark.parametrize("name", ["../default", "public/..", "./default"])
def test_a_namespace_is_not_named_like_a_step_of_a_path(name: str) -> None:
    with pytest.raises(InvalidTopicNameError):
        parse_namespace(name)
