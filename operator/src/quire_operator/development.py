"""The operator for `kopf run -m quire_operator.development`: the same handlers and lease, set up by variables.

QUIRE_BOOKIE_IMAGE, QUIRE_BROKER_IMAGE and QUIRE_JOBS_IMAGE name the images of resources that name none;
QUIRE_OPERATOR_NAMESPACE the namespace of the lease ["default"]. It has no metrics and no certificates of etcd.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import aiohttp
import kopf

from quire_operator.cluster.kube import Kube
from quire_operator.errors import KubeError, OperatorError, UnreachableError
from quire_operator.running.handlers import register, start
from quire_operator.running.lease import Leadership
from quire_operator.running.passes import Defaults, Images
from quire_operator.running.reconciling import Reconciling

_log = logging.getLogger("quire.operator")


def kubeconfig_of(variables: "os._Environ[str]") -> str | None:
    """Return the kubeconfig that `kubectl` would use; None for the ServiceAccount of the pod."""
    named, usual = variables.get("KUBECONFIG"), Path.home() / ".kube" / "config"
    return named or (str(usual) if usual.is_file() else None)


def defaults_of(variables: "os._Environ[str]") -> Defaults:
    """Return the images that the variables name. kopf.PermanentError if a required one is missing."""
    lacking = [name for name in ("QUIRE_BOOKIE_IMAGE", "QUIRE_BROKER_IMAGE") if not variables.get(name)]
    if lacking:
        raise kopf.PermanentError(f"{' and '.join(lacking)} must name an image, for example quire-bookie:dev")
    jobs = variables.get("QUIRE_JOBS_IMAGE") or None
    return Defaults(Images(variables["QUIRE_BOOKIE_IMAGE"], variables["QUIRE_BROKER_IMAGE"], jobs))


async def begin(settings: kopf.OperatorSettings, memo: kopf.Memo, **indices: Any) -> None:
    """Wait for the lease, then reconcile. kopf starts its watches once this returns."""
    defaults = defaults_of(os.environ)
    memo.term = term = asyncio.create_task(_term(memo, defaults))
    memo.acquired = asyncio.Event()
    acquiring = asyncio.create_task(memo.acquired.wait())
    await asyncio.wait({term, acquiring}, return_when=asyncio.FIRST_COMPLETED)
    if not memo.acquired.is_set():
        acquiring.cancel()
        try:
            await term
        except OperatorError as error:
            raise kopf.PermanentError(str(error)) from error
    await start(settings, memo, **indices)


async def end(memo: kopf.Memo, **_: Any) -> None:
    """Stop reconciling, and release the lease."""
    memo.term.cancel()
    await asyncio.wait({memo.term})


async def _term(memo: kopf.Memo, defaults: Defaults) -> None:
    """Reconcile until cancelled, or until the lease is lost: then no write is sent any more, and kopf is stopped."""
    namespace = os.environ.get("QUIRE_OPERATOR_NAMESPACE") or "default"
    async with await Kube.open(kubeconfig_of(os.environ)) as kube, aiohttp.ClientSession() as session:
        leadership = Leadership(kube, namespace, socket.gethostname(), time.time)
        kube.before_writing = leadership.check
        reconciling = Reconciling(kube, session, defaults)
        memo.update(reconciling.memo())
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(leadership.run(), name="lease")
                await leadership.held.wait()
                memo.acquired.set()
                for name, each in reconciling.tasks():
                    tasks.create_task(each, name=name)
        except* OperatorError as errors:
            _log.error("reconciliation ended: %s; start it again", errors.exceptions[0])
            if threading.current_thread() is threading.main_thread():
                signal.raise_signal(signal.SIGTERM)
        finally:
            with contextlib.suppress(KubeError, UnreachableError):
                await leadership.give_back()


_registry = kopf.get_default_registry()
kopf.on.startup(registry=_registry)(begin)
kopf.on.cleanup(registry=_registry)(end)
register(_registry, kubeconfig_of(os.environ))
