"""The lease: when it is renewed, when it counts as lost, and the notifications of the listeners."""

import asyncio
from collections.abc import Awaitable, Callable

from quire_bookie.errors import MetadataUnavailableError
from quire_bookie.metadata.etcd.proto import rpc_pb2 as rpc
from quire_bookie.metadata.etcd.session import EtcdSession
from quire_bookie.metadata.store import MetadataStats, SessionState
from tests.sim.loop import SimLoop
from tests.unit.bookie.metadata.etcd.fake_connection import FakeConnection, FakeStream

TTL_S = 30
LOST, RENEWED, CONNECTED = SessionState.LOST, SessionState.RENEWED, SessionState.CONNECTED


class Scenario:
    """A session on a fake etcd that grants leases 1, 2, ... and renews those in `alive`."""

    def __init__(self) -> None:
        self.connection = FakeConnection()
        self.connection.on_call = self._call
        self.connection.on_stream = self._stream
        self.stats = MetadataStats()
        self.session = EtcdSession(self.connection, TTL_S, self.stats)  # type: ignore[arg-type]
        self.alive: set[int] = set()
        self.granted = 0
        self.renewals: list[float] = []
        self.silent = False
        self.states: list[tuple[SessionState, float]] = []
        self.session.on_state(lambda state: self.states.append((state, self.now)))

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def _call(self, method: object, request: object) -> object:
        if isinstance(request, rpc.LeaseGrantRequest):
            assert request.TTL == TTL_S
            self.granted += 1
            self.alive.add(self.granted)
            return rpc.LeaseGrantResponse(ID=self.granted, TTL=TTL_S)
        if isinstance(request, rpc.LeaseTimeToLiveRequest):
            if self.silent:
                raise MetadataUnavailableError("no answer")
            return rpc.LeaseTimeToLiveResponse(ID=request.ID, TTL=1 if request.ID in self.alive else -1)
        assert isinstance(request, rpc.LeaseRevokeRequest)
        self.alive.discard(request.ID)
        return rpc.LeaseRevokeResponse()

    def _stream(self, stream: FakeStream) -> None:
        original = stream.send

        async def send(request: rpc.LeaseKeepAliveRequest) -> None:
            await original(request)
            self.renewals.append(self.now)
            if not self.silent:
                ttl = TTL_S if request.ID in self.alive else 0
                stream.answer(rpc.LeaseKeepAliveResponse(ID=request.ID, TTL=ttl))

        stream.send = send  # type: ignore[method-assign]


def play(script: Callable[[Scenario], Awaitable[None]]) -> None:
    """Run a script in virtual time."""

    async def run() -> None:
        scenario = Scenario()
        await script(scenario)
        await scenario.session.close()

    loop = SimLoop(1)
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(run())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_one_lease_is_granted_when_it_is_needed() -> None:
    async def script(scenario: Scenario) -> None:
        assert scenario.session.lease == 0
        assert set(await asyncio.gather(*(scenario.session.ensure() for _ in range(5)))) == {1}
        assert scenario.granted == 1

    play(script)


def test_the_lease_is_renewed_every_third_of_its_time_without_a_notification() -> None:
    async def script(scenario: Scenario) -> None:
        await scenario.session.ensure()
        await asyncio.sleep(TTL_S * 10 + 1)
        assert scenario.renewals == [10.0 * n for n in range(1, 31)]
        assert scenario.states == []

    play(script)


def test_an_unresponsive_cluster_means_lost_before_the_lease_can_expire() -> None:
    async def script(scenario: Scenario) -> None:
        await scenario.session.ensure()
        await asyncio.sleep(11)
        scenario.silent = True
        await asyncio.sleep(60)
        assert [scenario.connection.opened.get_nowait().gave_up for _ in range(2)] == [False, True]
        (state, at), *rest = scenario.states
        assert state is LOST
        assert 10 + TTL_S * 5 / 6 <= at <= 10 + TTL_S
        assert rest == []

    play(script)


def test_a_cluster_that_hears_us_and_is_not_heard_does_not_keep_the_lease() -> None:
    async def script(scenario: Scenario) -> None:
        await scenario.session.ensure()
        scenario.silent = True
        await asyncio.sleep(10 * TTL_S)
        (state, lost_at), *rest = scenario.states
        assert (state, rest) == (LOST, [])
        assert scenario.renewals, "it tried while it counted on its lease"
        assert max(scenario.renewals) <= lost_at
        scenario.alive.clear()
        scenario.silent = False
        await asyncio.sleep(TTL_S)
        assert [state for state, _ in scenario.states] == [LOST, RENEWED]
        assert scenario.session.lease == 2

    play(script)


def test_an_unreachable_cluster_that_kept_the_lease_is_connected_again() -> None:
    async def script(scenario: Scenario) -> None:
        await scenario.session.ensure()
        scenario.connection.away = True
        await asyncio.sleep(100)
        assert [state for state, _ in scenario.states] == [LOST]
        scenario.connection.away = False
        await asyncio.sleep(15)
        assert [state for state, _ in scenario.states] == [LOST, CONNECTED]
        assert scenario.granted == 1

    play(script)


def test_a_short_silence_causes_no_notification() -> None:
    async def script(scenario: Scenario) -> None:
        await scenario.session.ensure()
        scenario.connection.away = True
        await asyncio.sleep(20)
        scenario.connection.away = False
        await asyncio.sleep(60)
        assert scenario.states == []

    play(script)


def test_an_expired_lease_is_replaced() -> None:
    async def script(scenario: Scenario) -> None:
        await scenario.session.ensure()
        scenario.alive.clear()
        await asyncio.sleep(11)
        assert [state for state, _ in scenario.states] == [LOST, RENEWED]
        assert scenario.session.lease == 2
        scenario.alive.clear()
        await asyncio.sleep(11)
        assert [state for state, _ in scenario.states] == [LOST, RENEWED] * 2
        assert (scenario.stats.leases_granted, scenario.stats.sessions_lost) == (3, 2)

    play(script)


def test_a_write_with_an_expired_lease_replaces_it_at_once() -> None:
    async def script(scenario: Scenario) -> None:
        lease = await scenario.session.ensure()
        scenario.session.lease_gone(lease + 7)
        assert scenario.states == []
        scenario.session.lease_gone(lease)
        assert await scenario.session.ensure() == 2
        await asyncio.sleep(0.1)
        assert [state for state, _ in scenario.states] == [LOST, RENEWED]
        scenario.session.lease_gone(lease)
        assert scenario.session.lease == 2

    play(script)


def test_a_lease_that_a_write_replaces_during_an_outage_is_announced_as_renewed() -> None:
    """A broker registers again only then: CONNECTED would mean that its node is still there."""

    async def script(scenario: Scenario) -> None:
        lease = await scenario.session.ensure()
        scenario.silent = True
        await asyncio.sleep(TTL_S)
        assert [state for state, _ in scenario.states] == [LOST]
        scenario.alive.clear()
        scenario.session.lease_gone(lease)
        assert await scenario.session.ensure() == 2
        scenario.silent = False
        await asyncio.sleep(TTL_S)
        assert [state for state, _ in scenario.states] == [LOST, RENEWED]
        assert scenario.session.lease == 2

    play(script)


def test_close_revokes_and_tolerates_an_unreachable_cluster() -> None:
    async def script(scenario: Scenario) -> None:
        await scenario.session.ensure()
        await scenario.session.close()
        assert scenario.alive == set()
        assert scenario.states == []

    async def away(scenario: Scenario) -> None:
        await scenario.session.ensure()
        scenario.connection.away = True
        await scenario.session.close()

    play(script)
    play(away)


def test_a_first_lease_that_is_not_granted_is_an_error_and_can_be_granted_later() -> None:
    async def script(scenario: Scenario) -> None:
        scenario.connection.away = True
        for _ in range(2):
            try:
                await scenario.session.ensure()
            except MetadataUnavailableError:
                continue
            raise AssertionError("the cluster is unreachable")
        scenario.connection.away = False
        assert await scenario.session.ensure() == 1

    play(script)
