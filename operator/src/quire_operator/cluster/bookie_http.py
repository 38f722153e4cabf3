"""The HTTP ports of bookies and auto-recovery: what they say of themselves and of the cluster, and wishes to them."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from quire_operator.builders.settings import BOOKIE_HTTP_PORT
from quire_operator.cluster.judges import Judge, trusting_anybody
from quire_operator.errors import UnreachableError
from quire_operator.plan.seen import BookieSeen, ClusterSeen, DrainSeen

ASK_TIMEOUT_S = 5.0
_RECOVERY = "/api/v1/autorecovery"


@dataclass(frozen=True, slots=True)
class Said:
    """An answer."""

    status: int
    body: Any


class BookieHttp:
    """Asks by IP: names of pods may not resolve where the operator runs."""

    def __init__(self, session: aiohttp.ClientSession, port: int = BOOKIE_HTTP_PORT) -> None:
        self._session = session
        self._port = port
        self._judges: dict[str, Judge] = {}
        self._of_pool: dict[str, dict[str, Judge]] = {}
        self._tokens: dict[str, tuple[str, str]] = {}
        """Pool and token by host."""

    def judge(self, pool: str, hosts: Collection[str], judges: Mapping[str, Judge], token: str | None = None) -> None:
        """By what the hosts of a pool are judged from now on, and the token that they are shown.

        Those without a judge speak in clear.

        Addresses that its pods had before are forgotten, unless they are another pool's by now.
        """
        for host, former in self._of_pool.pop(pool, {}).items():
            if self._judges.get(host) is former:
                del self._judges[host]
        for host in hosts:
            self._judges.pop(host, None)
        self._judges.update(judges)
        others = {host: shown for host, shown in self._tokens.items() if shown[0] != pool and host not in hosts}
        self._tokens = others | ({} if token is None else dict.fromkeys(hosts, (pool, token)))
        if judges:
            self._of_pool[pool] = dict(judges)

    async def ask(self, host: str, path: str, method: str = "GET", body: object = None) -> Said:
        """One request, over TLS where the host has a judge. UnreachableError.

        A pod that was made before TLS was turned on or off speaks the other way until it is replaced, which only goes
        on while the operator can ask it: so the other way is tried too. A certificate that the judge refuses is final,
        and a pod whose own spec requires TLS is never asked in clear. A pod that was made before authentication was
        turned on does not look at the token.
        """
        judge = self._judges.get(host)
        ways = [judge, None] if judge is not None else [None, Judge(trusting_anybody(), "")]
        try:
            return await self._ask(ways[0], host, path, method, body)
        except aiohttp.ClientConnectorCertificateError as error:
            raise UnreachableError(f"{method} {path} of {host}: {error}") from error
        except (aiohttp.ClientConnectorSSLError, aiohttp.ServerDisconnectedError, aiohttp.ClientResponseError) as first:
            if judge is not None and judge.required:
                raise UnreachableError(f"{method} {path} of {host}, which must serve TLS: {first}") from first
            try:
                return await self._ask(ways[1], host, path, method, body)
            except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
                raise UnreachableError(f"{method} {path} of {host}: {first}") from first
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise UnreachableError(f"{method} {path} of {host}: {error or 'no answer in time'}") from error

    async def _ask(self, judge: Judge | None, host: str, path: str, method: str, body: object) -> Said:
        timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
        url = f"{'http' if judge is None else 'https'}://{host}:{self._port}{path}"
        tls = True if judge is None else judge.context
        name = None if judge is None else judge.name or None
        _, token = self._tokens.get(host, ("", ""))
        asked = self._session.request(
            method,
            url,
            json=body,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=timeout,
            ssl=tls,
            server_hostname=name,
        )
        async with asked as answer:
            said = Said(answer.status, await answer.json(content_type=None))
        if said.status in (401, 403):
            raise UnreachableError(f"{method} {path}: {host} refuses the operator ({said.status}): {said.body}")
        return said

    async def bookie(self, host: str, bookie_id: str) -> BookieSeen:
        """What a bookie says of itself. UnreachableError, also while it starts."""
        state = await self.ask(host, "/api/v1/bookie/state")
        space = await self.ask(host, "/api/v1/bookie/info")
        if state.status != 200 or space.status != 200:
            raise UnreachableError(f"{host} is not up: {state.body}")
        with _understood(host):
            return _bookie(bookie_id, state, space)

    async def addresses(self, host: str) -> dict[str, str]:
        """host:port by the id of each registered bookie. UnreachableError."""
        found: dict[str, str] = {}
        for kind in ("rw", "ro"):
            said = await self.ask(host, f"/api/v1/bookie/list_bookies?type={kind}&print_hostnames=true")
            if said.status != 200:
                raise UnreachableError(f"{host} cannot list bookies: {said.body}")
            with _understood(host):
                found |= {bookie: address or "" for bookie, address in said.body.items()}
        return found

    async def cluster(self, host: str, also: frozenset[str]) -> ClusterSeen:
        """What the metadata says. `also`: ids that may be known by a cookie alone. UnreachableError."""
        unrecoverable = await self.ask(host, "/api/v1/quire/unrecoverable")
        writable = await self.ask(host, "/api/v1/bookie/list_bookies?type=rw")
        reading = await self.ask(host, "/api/v1/bookie/list_bookies?type=ro")
        auditor = await self.ask(host, f"{_RECOVERY}/who_is_auditor")
        enabled = await self.ask(host, f"{_RECOVERY}/status")
        drains = await self.ask(host, "/api/v1/quire/drains")
        answers = (unrecoverable, writable, reading, enabled, drains)
        if any(said.status != 200 for said in answers):
            raise UnreachableError(f"{host} cannot ask the metadata store")
        with _understood(host):
            registered = frozenset(writable.body) | frozenset(reading.body)
            known = [one for one in sorted(also - registered) if await self._is_known(host, one)]
            accepted = {str(one["ledger"]) for one in unrecoverable.body if one.get("accepted_ms") is not None}
            lacking, oldest_ms = await self._lacking(host, accepted)
            return ClusterSeen(
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
        """How many ledgers lack a replica, and when the first was marked, in ms. UnreachableError.

        A bookie of an earlier version only lists them, and answers 404 when there are none.
        """
        said = await self.ask(host, "/api/v1/quire/under-replication")
        if said.status == 200:
            return int(said.body["count"]), said.body["oldest_ms"]
        listed = await self.ask(host, f"{_RECOVERY}/list_under_replicated_ledger")
        if listed.status not in (200, 404):
            raise UnreachableError(f"{host} cannot ask the metadata store: {listed.body}")
        return 0 if listed.status == 404 else len(set(map(str, listed.body)) - set(accepted)), None

    async def _is_known(self, host: str, bookie: str) -> bool:
        said = await self.ask(host, f"/api/v1/quire/drains/{bookie}")
        return said.status != 200 or said.body.get("state") != "forgotten"

    async def lost_bookie_delay_s(self, host: str) -> int | None:
        """The cluster's value; None when none is set. UnreachableError."""
        said = await self.ask(host, f"{_RECOVERY}/lost_bookie_recovery_delay")
        return int(said.body["delay_seconds"]) if said.status == 200 else None

    async def set_lost_bookie_delay(self, host: str, delay_s: int) -> None:
        """For the whole cluster. UnreachableError when it was not taken."""
        body = {"delay_seconds": delay_s}
        await self._wish(host, f"{_RECOVERY}/lost_bookie_recovery_delay", "PUT", body, {200})

    async def decommission(self, host: str, bookie: str) -> None:
        """Have a bookie emptied, and forgotten once it is stopped; one that nobody knows (any more) is no error."""
        await self._wish(host, f"/api/v1/quire/drains/{bookie}", "PUT", {"wish": "decommission"}, {200, 404})

    async def cancel_drain(self, host: str, bookie: str) -> None:
        """A bookie stays; one that is not drained is no error."""
        await self._wish(host, f"/api/v1/quire/drains/{bookie}", "DELETE", None, {200, 404})

    async def _wish(self, host: str, path: str, method: str, body: object, fine: set[int]) -> None:
        said = await self.ask(host, path, method, body)
        if said.status not in fine:
            raise UnreachableError(f"{method} {path} was not taken ({said.status}): {said.body}")


@contextmanager
def _understood(host: str) -> Iterator[None]:
    """An answer that is none of ours, of another version or another program, is no answer. UnreachableError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreachableError(f"{host} answers something else ({error!r}): another version?") from error


def _bookie(bookie_id: str, state: Said, space: Said) -> BookieSeen:
    return BookieSeen(
        bookie_id,
        writable=bool(state.body["running"]) and not state.body["readOnly"],
        read_only_reasons=tuple(state.body["readOnlyReasons"]),
        in_limbo=bool(state.body["inLimbo"]),
        total_bytes=int(space.body["totalSpace"]),
        free_bytes=int(space.body["freeSpace"]),
        scrub_ended_s=int(state.body.get("scrubEndedMs", 0)) / 1000 or None,
        scrub_damages=int(state.body.get("scrubDamages", 0)),
    )


def _drain(one: dict[str, Any]) -> DrainSeen:
    """As the auditor wrote it; one that it has not looked at counts as not empty."""
    return DrainSeen(
        bookie=str(one["bookie"]),
        emptied=one["state"] == "emptied",
        ledgers_left=int(one.get("ledgers_left", 1)),
        eta_s=one.get("eta_s"),
        looked_at_s=int(one.get("at_ms", 0)) / 1000,
        blocked_by=tuple(one.get("blocked_by", ())),
        leaving=one["state"] in ("leaving", "emptied"),
    )
