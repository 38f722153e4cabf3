"""The command: `quire-operator run` (or `python -m quire_operator.main run`). The work is in `running`."""

import argparse
import asyncio
import logging
import os
import socket
import sys

from quire_operator import __version__
from quire_operator.errors import OperatorError
from quire_operator.running.process import OperatorSettings, run_operator

SERVICE_ACCOUNT_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


def main(words: list[str] | None = None) -> int:
    """Exit code: 0 ended as asked, 1 failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="quire-operator", description="Quire's Kubernetes operator.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="look after Bookie resources until SIGINT or SIGTERM")
    run.add_argument("--kubeconfig", default=os.environ.get("KUBECONFIG"), help="file; default: the account of the pod")
    run.add_argument("--namespace", default=None, help="where the lease is; default: the namespace of the pod")
    run.add_argument("--watch-namespace", default=None, help="only resources in it; default: everywhere")
    run.add_argument("--identity", default=socket.gethostname(), help="what the lease names; default: the host name")
    run.add_argument("--image", required=True, help="image of pods whose resource names none")
    run.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    given = parser.parse_args(words)
    logging.basicConfig(level=given.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    namespace = given.namespace or _own_namespace()
    try:
        settings = OperatorSettings(given.kubeconfig, namespace, given.identity, given.image, given.watch_namespace)
        asyncio.run(run_operator(settings))
    except OperatorError as error:
        print(f"quire-operator: {error}", file=sys.stderr)
        return 1
    return 0


def _own_namespace() -> str:
    try:
        with open(SERVICE_ACCOUNT_NAMESPACE) as file:
            return file.read().strip()
    except OSError:
        return "default"


if __name__ == "__main__":
    sys.exit(main())
