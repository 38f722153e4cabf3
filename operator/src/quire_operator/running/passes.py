"""Reconciles one resource: the pass that the queue repeats. Says with kopf's errors whether a retry helps."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp
import kopf
from pydantic import ValidationError

from quire_operator.certificates.keeping import CertificateSecrets
from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.cluster.broker_rest import BrokerRest
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.ledger_passwords import LedgerPasswords
from quire_operator.cluster.memory import Memory, Resources
from quire_operator.errors import OperatorError
from quire_operator.reconcile import reconcile_bookie, reconcile_managed_ledger
from quire_operator.reconcile_declared import RECONCILES, DeclaredContext
from quire_operator.running.work_queue import Key, Work, back_off_s


@dataclass(frozen=True, slots=True)
class Images:
    """Images of pods whose resource names none."""

    bookie: str
    broker: str
    jobs: str | None = None
    """None if each resource with jobs must name one."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds for resources that do not say otherwise."""

    images: Images
    generated_tls: bool = False
    """Generate certificates for resources without `tls`."""
    any_template: bool = False
    """Pod templates may request privileges on the node and other ServiceAccounts."""


def pass_of(
    kube: Kube, session: aiohttp.ClientSession, defaults: Defaults, memory: Memory, secrets: CertificateSecrets
) -> Callable[[Key], Awaitable[float | None]]:
    """Return the function that reconciles one resource. It returns the seconds until the next time, or None if gone."""
    bookies, brokers, images = BookieHttp(session), BrokerRest(session), defaults.images
    certificates = secrets if defaults.generated_tls else None
    passwords = LedgerPasswords(kube)
    declared = DeclaredContext(kube, brokers, memory, defaults.generated_tls)

    async def one_pass(key: Key) -> float | None:
        where, now_s = (key.namespace, key.name), time.time()
        if key.kind in RECONCILES:
            return await RECONCILES[key.kind](declared, *where, now_s)
        if key.kind == "ManagedLedger":
            return await reconcile_managed_ledger(
                kube,
                brokers,
                *where,
                default_image=images.broker,
                jobs_image=images.jobs,
                now_s=now_s,
                memory=memory,
                certificates=certificates,
                passwords=passwords,
                any_template=defaults.any_template,
            )
        return await reconcile_bookie(
            kube,
            bookies,
            *where,
            default_image=images.bookie,
            now_s=now_s,
            memory=memory,
            certificates=certificates,
            any_template=defaults.any_template,
        )

    return one_pass


def work_of(one_pass: Callable[[Key], Awaitable[float | None]], resources: Resources) -> Work:
    """Return the work of the queue: the pass, whose errors say whether a retry helps, as kopf's do."""

    async def work(key: Key, retry: int) -> float | None:
        indexed = resources.uids(key.kind, key.namespace, key.name)
        try:
            again_s = await one_pass(key)
        except OperatorError as error:
            raise kopf.TemporaryError(str(error), delay=back_off_s(retry)) from error
        except ValidationError as error:
            raise kopf.PermanentError(f"it does not match the CRD of this operator: {error}") from error
        if again_s is None:
            resources.hide(indexed)
        return again_s

    return work
