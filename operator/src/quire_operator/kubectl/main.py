"""The command `kubectl quire` (executable `kubectl-quire`): arguments, output and exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage. Errors are one line on standard error; progress goes there, too.
"""

import argparse
import asyncio
import codecs
import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from quire_operator import __version__
from quire_operator.errors import OperatorError
from quire_operator.kubectl import acting, jobs, report, showing
from quire_operator.kubectl.access import Cluster
from quire_operator.kubectl.terminal import for_terminal


def main(words: list[str] | None = None) -> int:
    """Run one command line."""
    given = parser().parse_args(words)
    try:
        rows, text = asyncio.run(_run(given))
    except OperatorError as error:
        print(for_terminal(f"kubectl quire: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; operations in the cluster continue", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone; Python would report this at exit
        return 1
    shown = json.dumps(rows, indent=2, ensure_ascii=False) if given.output == "json" else text
    if shown:
        print(for_terminal(shown))
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("-n", "--namespace", help="namespace of the resources; default: from the kubeconfig's context")
    common.add_argument("-o", "--output", choices=["table", "json"], default="table", help="[table]")
    common.add_argument("--kubeconfig", help="kubeconfig file; default: like kubectl, KUBECONFIG or ~/.kube/config")
    common.add_argument("--context", help="context of the kubeconfig; default: the current one")
    top = argparse.ArgumentParser(prog="kubectl quire", description="Inspect and drain Quire's bookies and brokers.")
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[common])

    one = command("status", "show pools, bookies, namespaces of topics, and problems")
    one.add_argument("-A", "--all-namespaces", action="store_true")
    one = command("drain", "move all copies off a bookie; its pod stays")
    one.add_argument("bookie", metavar="POD|BOOKIE")
    one.add_argument("--no-wait", action="store_true", help="return at once; the drain continues in the background")
    one = command("undrain", "cancel a drain")
    one.add_argument("bookie", metavar="POD|BOOKIE")
    command("under-replicated", "list under-replicated ledgers, and those that could not be restored")
    one = command("explain", "explain why something is not ready or not safe")
    one.add_argument("what", metavar="POD|LEDGER|TOPIC|RESOURCE")
    one = command("ledgers", "list ledgers with their bookies")
    one.add_argument("--limit", type=int, default=100, help="[100]")
    one = command("cursors", "list the cursors of a topic")
    one.add_argument("topic", metavar="TOPIC", help="persistent://tenant/namespace/topic")
    one = command("jobs", "list Spark jobs, offload and analyses: their state, last success and next run")
    one.add_argument("managed_ledger", metavar="MANAGEDLEDGER", nargs="?", help="[all of the namespace]")
    _job(commands, common)
    one = command("report", "write a redacted bundle for support: resources, events, logs; no Secrets")
    one.add_argument("--to", default="quire-report.tar.gz", help="file [quire-report.tar.gz]")
    one.add_argument("--log-lines", type=int, default=report.LOG_LINES, help=f"[{report.LOG_LINES}]")
    return top


def _job(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add `job logs` and `job run`."""
    text = "print the log of a job's driver, or start a run"
    words = commands.add_parser("job", help=text, description=text).add_subparsers(
        dest="action", required=True, metavar="logs|run"
    )
    text = "print the driver's log of the newest run, or of the run of a slot"
    logs = words.add_parser("logs", help=text, description=text, parents=[common])
    logs.add_argument("name", metavar="JOB|MANAGEDLEDGER/JOB")
    logs.add_argument("-f", "--follow", action="store_true", help="also print new lines, until the run ends")
    logs.add_argument("--slot", help="time of the run, as shown by `jobs`")
    logs.add_argument("--lines", type=int, default=jobs.LOG_LINES, help=f"[{jobs.LOG_LINES}]")
    text = "start a run of a job now, regardless of its schedule"
    run = words.add_parser("run", help=text, description=text, parents=[common])
    run.add_argument("name", metavar="JOB|MANAGEDLEDGER/JOB")


async def _run(given: argparse.Namespace) -> tuple[Any, str]:
    cluster = await Cluster.reach(given.kubeconfig, given.context, given.namespace, os.environ.get("QUIRE_TOKEN", ""))
    async with cluster:
        match given.command:
            case "status":
                return await showing.status(cluster, everywhere=given.all_namespaces)
            case "drain":
                return await acting.drain(cluster, given.bookie, _progress, wait=not given.no_wait)
            case "undrain":
                return await acting.undrain(cluster, given.bookie)
            case "under-replicated":
                return await showing.under_replicated(cluster)
            case "explain":
                return await acting.explain(cluster, given.what)
            case "ledgers":
                return await showing.ledgers(cluster, max(1, given.limit))
            case "cursors":
                return await showing.cursors(cluster, given.topic)
            case "jobs":
                return await jobs.show(cluster, given.managed_ledger)
            case "job" if given.action == "run":
                return await jobs.run(cluster, given.name, datetime.now(UTC))
            case "job":
                # With `-o json` standard output is one object, the pod of the log; the log goes to standard error.
                stream = sys.stderr if given.output == "json" else sys.stdout
                return await jobs.log(
                    cluster, given.name, _writer(stream), slot=given.slot, lines=given.lines, follow=given.follow
                )
        return await _report(cluster, Path(given.to), given.log_lines)


async def _report(cluster: Cluster, file: Path, log_lines: int) -> tuple[Any, str]:
    files = await report.collect(cluster, _progress, log_lines=log_lines)
    try:
        file.write_bytes(report.archive(files))  # noqa: ASYNC240 - once, at the end of a command
    except OSError as error:
        raise OperatorError(f"{file} cannot be written: {error.strerror}") from error
    text = f"{file}: {len(files)} files without Secrets; values that look secret are replaced; check it before sending"
    return {"file": str(file), "files": sorted(files)}, text


def _writer(stream: TextIO) -> Callable[[bytes], None]:
    """Return a function that prints chunks of a log as they arrive; unchanged if the output is a file or a pipe."""

    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(data: bytes) -> None:
        text = decoder.decode(data)
        stream.write(for_terminal(text) if stream.isatty() else text)
        stream.flush()

    return write


def _progress(line: str) -> None:
    print(for_terminal(line), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
