"""Client of the HTTP ports of bookies and auto-recovery: reads their state and the cluster's, and requests drains."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from quire_operator.builders.settings import BOOKIE_HTTP_PORT
from quire_operator.cluster.bounded_body import IDENTITY, read_json
from quire_operator.cluster.tls_trust import TlsTrust, trusting_any
from quire_operator.errors import UnreachableError
from quire_operator.plan.observation import ObservedBookie, ObservedCluster, ObservedDrain, ObservedLoad

ASK_TIMEOUT_S = 5.0
_RECOVERY = "/api/v1/autorecovery"


@dataclass(frozen=True, slots=True)
class Response:
    """A response."""

    status: int
    body: Any


class BookieHttp:
    """Connects by IP: names of pods may not resolve where the operator runs."""

    def __init__(self, session: aiohttp.ClientSession, port: int = BOOKIE_HTTP_PORT) -> None:
        self._session = session
        self._port = port
        self._trusts: dict[str, TlsTrust] = {}
        self._of_pool: dict[str, dict[str, TlsTrust]] = {}
        self._tokens: dict[str, tuple[str, str]] = {}
        """Pool and token by host."""

    def set_trust(
        self, pool: str, hosts: Collection[str], trusts: Mapping[str, TlsTrust], token: str | None = None
    ) -> None:
        """Set how the certificates of a pool's hosts are verified from now on, and the token for requests to them.

        Hosts without an entry in `trusts` use plaintext.

        Former addresses of the pool are removed, unless another pool has them now.
        """
        for host, former in self._of_pool.pop(pool, {}).items():
            if self._trusts.get(host) is former:
                del self._trusts[host]
        for host in hosts:
            self._trusts.pop(host, None)
        self._trusts.update(trusts)
        others = {host: shown for host, shown in self._tokens.items() if shown[0] != pool and host not in hosts}
        self._tokens = others | ({} if token is None else dict.fromkeys(hosts, (pool, token)))
        if trusts:
            self._of_pool[pool] = dict(trusts)

    async def ask(self, host: str, path: str, method: str = "GET", body: object = None) -> Response:
        """Send one request, over TLS if the host has a trust entry. Raises UnreachableError.

        A pod that was created before TLS was switched on or off uses the other mode until it is replaced, and a roll
        needs responses from it: so the other mode is tried, too. A rejected certificate is final, and a pod whose own
        spec requires TLS is never contacted in plaintext. A pod that was created before authentication was switched on
        ignores the token.
        """
        trust = self._trusts.get(host)
        ways = [trust, None] if trust is not None else [None, TlsTrust(trusting_any(), "")]
        try:
            return await self._ask(ways[0], host, path, method, body)
        except aiohttp.ClientConnectorCertificateError as error:
            raise UnreachableError(f"{method} {path} of {host}: {error}") from error
        except (aiohttp.ClientConnectorSSLError, aiohttp.ServerDisconnectedError, aiohttp.ClientResponseError) as first:
            if trust is not None and trust.required:
                raise UnreachableError(f"{method} {path} of {host}, which must serve TLS: {first}") from first
            try:
                return await self._ask(ways[1], host, path, method, body)
            except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
                raise UnreachableError(f"{method} {path} of {host}: {first}") from first
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise UnreachableError(f"{method} {path} of {host}: {error or 'no response in time'}") from error

    async def _ask(self, trust: TlsTrust | None, host: str, path: str, method: str, body: object) -> Response:
        timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
        url = f"{'http' if trust is None else 'https'}://{host}:{self._port}{path}"
        tls = True if trust is None else trust.context
        name = None if trust is None else trust.name or None
        _, token = self._tokens.get(host, ("", ""))
        request = self._session.request(
            method,
            url,
            json=body,
            headers=IDENTITY | ({"Authorization": f"Bearer {token}"} if token else {}),
            timeout=timeout,
            ssl=tls,
            server_hostname=name,
        )
        async with request as answer:
            response = Response(answer.status, await read_json(answer))
        if response.status in (401, 403):
            raise UnreachableError(f"{method} {path}: {host} refused the operator ({response.status}): {response.body}")
        return response

    async def bookie(self, host: str, bookie_id: str) -> ObservedBookie:
        """Return the state that a bookie reports. Raises UnreachableError, also while it starts."""
        state = await self.ask(host, "/api/v1/bookie/state")
        space = await self.ask(host, "/api/v1/bookie/info")
        if state.status != 200 or space.status != 200:
            raise UnreachableError(f"{host} is not ready: {state.body}")
        with _understood(host):
            found = _bookie(bookie_id, state, space)
        load = await self.ask(host, "/api/v1/bookie/load")
        if load.status != 200:
            return found  # an earlier version
        with _understood(host):
            window = load.body["window"]
            return found if window is None else replace(found, load=_load(window))

    async def addresses(self, host: str) -> dict[str, str]:
        """Return host:port by the id of each registered bookie. Raises UnreachableError."""
        found: dict[str, str] = {}
        for kind in ("rw", "ro"):
            response = await self.ask(host, f"/api/v1/bookie/list_bookies?type={kind}&print_hostnames=true")
            if response.status != 200:
                raise UnreachableError(f"{host} cannot list bookies: {response.body}")
            with _understood(host):
                found |= {bookie: address or "" for bookie, address in response.body.items()}
        return found

    async def cluster(self, host: str, also: frozenset[str]) -> ObservedCluster:
        """Return the state of the cluster. `also`: ids that may have only a cookie. Raises UnreachableError."""
        unrecoverable = await self.ask(host, "/api/v1/quire/unrecoverable")
        writable = await self.ask(host, "/api/v1/bookie/list_bookies?type=rw")
        reading = await self.ask(host, "/api/v1/bookie/list_bookies?type=ro")
        auditor = await self.ask(host, f"{_RECOVERY}/who_is_auditor")
        enabled = await self.ask(host, f"{_RECOVERY}/status")
        drains = await self.ask(host, "/api/v1/quire/drains")
        answers = (unrecoverable, writable, reading, enabled, drains)
        if any(response.status != 200 for response in answers):
            raise UnreachableError(f"{host} cannot query the metadata store")
        with _understood(host):
            registered = frozenset(writable.body) | frozenset(reading.body)
            known = [one for one in sorted(also - registered) if await self._is_known(host, one)]
            accepted = {str(one["ledger"]) for one in unrecoverable.body if one.get("accepted_ms") is not None}
            lacking, oldest_ms = await self._lacking(host, accepted)
            return ObservedCluster(
                under_replicated=lacking,
                unrecoverable=len(unrecoverable.body),
                accepted=len(accepted),
                oldest_mark_s=None if oldest_ms is None else oldest_ms / 1000,
                known=registered | frozenset(known),
                writable=frozenset(writable.body),
                auditor=auditor.body.get("Auditor") if auditor.status == 200 else None,
                recovery_enabled=bool(enabled.body["enabled"]),
                drains=tuple(_drain(one) for one in drains.body if one["state"] != "cancelling"),
            )

    async def _lacking(self, host: str, accepted: Collection[str]) -> tuple[int, int | None]:
        """Return the number of under-replicated ledgers and when the first was marked, in ms. Raises UnreachableError.

        A bookie of an earlier version only lists them, and returns 404 if there are none.
        """
        response = await self.ask(host, "/api/v1/quire/under-replication")
        if response.status == 200:
            return int(response.body["count"]), response.body["oldest_ms"]
        listed = await self.ask(host, f"{_RECOVERY}/list_under_replicated_ledger")
        if listed.status not in (200, 404):
            raise UnreachableError(f"{host} cannot query the metadata store: {listed.body}")
        return 0 if listed.status == 404 else len(set(map(str, listed.body)) - set(accepted)), None

    async def _is_known(self, host: str, bookie: str) -> bool:
        response = await self.ask(host, f"/api/v1/quire/drains/{bookie}")
        return response.status != 200 or response.body.get("state") != "forgotten"

    async def lost_bookie_delay_s(self, host: str) -> int | None:
        """Return the delay set for the cluster, or None. Raises UnreachableError."""
        response = await self.ask(host, f"{_RECOVERY}/lost_bookie_recovery_delay")
        return int(response.body["delay_seconds"]) if response.status == 200 else None

    async def set_lost_bookie_delay(self, host: str, delay_s: int) -> None:
        """Set the delay for the whole cluster. Raises UnreachableError if it was not accepted."""
        body = {"delay_seconds": delay_s}
        await self._request(host, f"{_RECOVERY}/lost_bookie_recovery_delay", "PUT", body, {200})

    async def decommission(self, host: str, bookie: str) -> None:
        """Request that a bookie is drained and, once stopped, its cookie removed. An unknown bookie is no error."""
        await self._request(host, f"/api/v1/quire/drains/{bookie}", "PUT", {"wish": "decommission"}, {200, 404})

    async def cancel_drain(self, host: str, bookie: str) -> None:
        """Cancel the drain of a bookie. A bookie that is not being drained is no error."""
        await self._request(host, f"/api/v1/quire/drains/{bookie}", "DELETE", None, {200, 404})

    async def _request(self, host: str, path: str, method: str, body: object, fine: set[int]) -> None:
        response = await self.ask(host, path, method, body)
        if response.status not in fine:
            raise UnreachableError(f"{method} {path} was refused ({response.status}): {response.body}")


@contextmanager
def _understood(host: str) -> Iterator[None]:
    """Convert errors from parsing an unexpected response, e.g. of another version, to UnreachableError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreachableError(f"unexpected response from {host} ({error!r}): another version?") from error


def _bookie(bookie_id: str, state: Response, space: Response) -> ObservedBookie:
    return ObservedBookie(
        bookie_id,
        writable=bool(state.body["running"]) and not state.body["readOnly"],
        read_only_reasons=tuple(state.body["readOnlyReasons"]),
        in_limbo=bool(state.body["inLimbo"]),
        total_bytes=int(space.body["totalSpace"]),
        free_bytes=int(space.body["freeSpace"]),
        scrub_ended_s=int(state.body.get("scrubEndedMs", 0)) / 1000 or None,
        scrub_damages=int(state.body.get("scrubDamages", 0)),
    )


def _load(window: Mapping[str, Any]) -> ObservedLoad:
    journal, add = window["journalWriteP99Seconds"], window["addP99Seconds"]
    return ObservedLoad(
        float(window["seconds"]),
        int(window["journalWrites"]),
        None if journal is None else float(journal),
        int(window["adds"]),
        None if add is None else float(add),
        int(window["addedBytes"]),
        int(window["readBytes"]),
        float(window["cpuSeconds"]),
    )


def _drain(one: dict[str, Any]) -> ObservedDrain:
    """Convert a drain as reported by the auditor; one that it has not checked yet counts as not empty."""
    return ObservedDrain(
        bookie=str(one["bookie"]),
        emptied=one["state"] == "emptied",
        ledgers_left=int(one.get("ledgers_left", 1)),
        eta_s=one.get("eta_s"),
        checked_at_s=int(one.get("at_ms", 0)) / 1000,
        blocked_by=tuple(one.get("blocked_by", ())),
        leaving=one["state"] in ("leaving", "emptied"),
    )
