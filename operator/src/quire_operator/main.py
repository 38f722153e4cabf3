"""The command: `quire-operator run` (or `python -m quire_operator.main run`). The work is in `running`."""

import argparse
import asyncio
import logging
import os
import socket
import sys

from quire_operator import __version__
from quire_operator.errors import OperatorError
from quire_operator.monitoring.bounded import HttpBounds
from quire_operator.running.lease import LeaseLostError
from quire_operator.running.log_lines import set_up_log
from quire_operator.running.process import Images, OperatorSettings, run_operator

SERVICE_ACCOUNT_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


def main(words: list[str] | None = None) -> int:
    """Exit code: 0 ended as asked, 1 failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="quire-operator", description="Quire's Kubernetes operator.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="look after the resources until SIGINT or SIGTERM")
    run.add_argument("--kubeconfig", default=os.environ.get("KUBECONFIG"), help="file; default: the account of the pod")
    run.add_argument("--namespace", default=None, help="where the lease is; default: the namespace of the pod")
    run.add_argument("--watch-namespace", default=None, help="only resources in it; default: everywhere")
    run.add_argument("--identity", default=socket.gethostname(), help="what the lease names; default: the host name")
    run.add_argument("--bookie-image", required=True, help="image of bookies whose resource names none")
    run.add_argument("--broker-image", required=True, help="image of brokers whose resource names none")
    run.add_argument("--jobs-image", default=None, help="image of jobs whose resource names none; default: none")
    run.add_argument("--metrics-port", type=int, default=8080, help="HTTP port of probes and metrics; 0: any. [8080]")
    text = "seconds after which a connection of that port is closed; 0: never. [10]"
    run.add_argument("--http-timeout", type=float, default=10.0, help=text)
    text = "connections of that port that one address may have; 0: no limit. [100]"
    run.add_argument("--http-connections-per-address", type=int, default=100, help=text)
    text = "certificates of resources that name no Secret: made by this operator, or none, in clear. [none]"
    run.add_argument("--tls", default="none", choices=["generated", "none"], help=text)
    text = "what pod templates may ask for: no rights over the node and no other account, or anything. [restricted]"
    run.add_argument("--pod-templates", default="restricted", choices=["restricted", "any"], help=text)
    run.add_argument("--etcd-certificates", metavar="NAME", help="keep those of the chart's etcd of this name")
    text = "where else its clients' Secret is wanted; may be given several times"
    run.add_argument("--etcd-client-namespace", action="append", default=[], metavar="NAMESPACE", help=text)
    run.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    given = parser.parse_args(words)
    set_up_log(given.log_level)
    namespace = given.namespace or _own_namespace()
    try:
        images = Images(given.bookie_image, given.broker_image, given.jobs_image)
        settings = OperatorSettings(
            *(given.kubeconfig, namespace, given.identity, images, given.watch_namespace),
            metrics_port=given.metrics_port,
            http=HttpBounds(given.http_timeout, given.http_connections_per_address),
            generated_tls=given.tls == "generated",
            any_template=given.pod_templates == "any",
            etcd=given.etcd_certificates,
            etcd_client_namespaces=tuple(given.etcd_client_namespace),
        )
        _run(settings)
    except OperatorError as error:
        print(f"quire-operator: {error}", file=sys.stderr)
        return 1
    return 0


def _run(settings: OperatorSettings) -> None:
    """Until it is ended. A lost lease ends everything that acts, and it begins anew as one who waits for the lease.

    In this process: Kubernetes would let a container that ends again and again wait for minutes, just when the API
    server is slow and much is to be done.
    """
    while True:
        try:
            return asyncio.run(run_operator(settings))
        except LeaseLostError as error:
            logging.getLogger("quire.operator").warning("%s: nothing is done until it is held again", error)


def _own_namespace() -> str:
    try:
        with open(SERVICE_ACCOUNT_NAMESPACE) as file:
            return file.read().strip()
    except OSError:
        return "default"


if __name__ == "__main__":
    sys.exit(main())
