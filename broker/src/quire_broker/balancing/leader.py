"""Leads the brokers of a cluster: assigns bundles without owner, and moves bundles away from overloaded brokers.

    /loadbalance/leader   {"brokerId", "serviceUrl"}, ephemeral: the first candidate creates it

Leadership is a lease, and two brokers may both believe to lead for a moment. This is harmless for ownership, which the
owner nodes decide; before it moves bundles, a leader reads whether it still leads.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

from quire_bookie.env.clock import WallClock
from quire_bookie.errors import BadVersionError, MetadataError
from quire_bookie.metadata.election import Election
from quire_bookie.metadata.store import ABSENT, Delete, MetadataStore, Node, SessionState
from quire_broker.balancing import made_moves
from quire_broker.balancing.assignments import (
    ASSIGNMENTS,
    LEADER,
    Assignment,
    Assignments,
    assignment_of,
    bundle_of_key,
    key_of,
)
from quire_broker.balancing.cluster_view import LoadBook, RuleBook, read_snapshot
from quire_broker.balancing.events import BalancingEvents, EventKind
from quire_broker.balancing.given import PENDING_S, Given, GivenBundles
from quire_broker.balancing.history import History
from quire_broker.balancing.plan.loads import BrokerId, BrokerLoad, BundleName, Snapshot
from quire_broker.balancing.plan.placement import place
from quire_broker.balancing.plan.shedding import Move, SheddingPlan, SheddingState, plan_moves
from quire_broker.balancing.resource_quotas import expected_weight
from quire_broker.ownership.owners import Bundle, bundle_named, owner_urls
from quire_broker.policies.store import PolicyStore, decode_json
from quire_broker.settings.balancing import BalancingSettings

ANSWERS_AT_ONCE = 8
CHECK_S = 5.0
"""Interval at which a leader checks that it leads, and removes assignments that are done."""
ASSIGNED_S = 30.0
"""An assignment whose broker has not taken the bundle by then is removed."""
MOVE_S = 120.0
"""A move that has not happened by then is given up."""
_log = logging.getLogger("quire.broker.balancing")


def _without(snapshot: Snapshot, broker: BrokerId | None) -> Snapshot:
    return replace(snapshot, brokers={each: load for each, load in snapshot.brokers.items() if each != broker})


class Leader:
    """One candidate, which leads from time to time."""

    def __init__(
        self,
        metadata: MetadataStore,
        policies: PolicyStore,
        broker_id: str,
        web_url: str,
        assignments: Assignments,
        events: BalancingEvents,
        clock: WallClock,
        settings: BalancingSettings,
    ) -> None:
        self._metadata, self._id, self._clock = metadata, BrokerId(broker_id), clock
        self._assignments, self._events, self._settings = assignments, events, settings
        self._election = Election(metadata, {"brokerId": broker_id, "serviceUrl": web_url}, LEADER)
        self._rules = RuleBook(metadata, policies)
        self._book = LoadBook(metadata, clock)
        self._history = History(metadata)
        self._state = SheddingState()
        self._begun_s = 0.0
        self._counted = False
        """Whether `_state` has the moves of earlier leaders."""
        self._rounding = asyncio.Lock()
        self._given = GivenBundles()
        self._deciding: dict[Bundle, asyncio.Lock] = {}
        self._questions: asyncio.Queue[Bundle] = asyncio.Queue()
        self._asked: set[Bundle] = set()
        self.leads = False

    async def run(self) -> None:
        """Take part in elections and lead, until cancelled."""
        while True:
            await self._election.win()
            try:
                await self._lead()
                self._events.add(EventKind.LEADER, f"{self._id} leads no more")
            finally:
                self.leads = False
                self._assignments.decide = None
                await self._election.resign()

    async def _lead(self) -> None:
        self._book, self._history = LoadBook(self._metadata, self._clock), History(self._metadata)
        self._state, self._given = SheddingState(), GivenBundles()
        self._begun_s, self._counted = asyncio.get_running_loop().time(), False
        self._events.add(EventKind.LEADER, f"{self._id} leads")
        self.leads = True
        self._assignments.decide = self.decide
        self._assignments.on_question = self._asks
        async with asyncio.TaskGroup() as group:
            work = (
                self._history.follow,
                self._book.follow,
                self._rounds,
                self._record,
                self._clear_away,
                self._read_questions,
            )
            tasks = [group.create_task(each()) for each in (*work, *[self._answer] * ANSWERS_AT_ONCE)]
            await self._until_lost()
            for task in tasks:
                task.cancel()

    async def _until_lost(self) -> None:
        lost = asyncio.Event()
        forget = self._metadata.on_session(lambda state: None if state is SessionState.CONNECTED else lost.set())
        try:
            while not lost.is_set():
                try:
                    async with asyncio.timeout(CHECK_S):
                        await lost.wait()
                except TimeoutError:
                    try:
                        if not await self._election.still_leads():
                            return
                    except MetadataError as error:
                        _log.info("cannot check whether this broker leads: %s", error)
        finally:
            forget()

    # assignments

    def _asks(self, bundle: Bundle) -> None:
        if bundle not in self._asked:
            self._asked.add(bundle)
            self._questions.put_nowait(bundle)

    async def _read_questions(self) -> None:
        """Find the questions that earlier leaders left."""
        try:
            async for page in self._metadata.scan(f"{ASSIGNMENTS}/"):
                for node in page:
                    bundle = bundle_of_key(node.key)
                    if bundle is not None:
                        self._asks(bundle)
        except MetadataError as error:
            _log.info("cannot read the questions that wait: %s", error)

    async def _answer(self) -> None:
        while True:
            bundle = await self._questions.get()
            self._asked.discard(bundle)
            try:
                node = await self._metadata.get(key_of(bundle))
                question = None if node is None else assignment_of(node)
                if question is not None and question.broker is None:
                    await self.decide(bundle, question.source, node)
            except MetadataError as error:
                _log.info("cannot assign %s yet: %s", bundle, error)

    async def decide(
        self, bundle: Bundle, source: BrokerId | None = None, question: Node | None = None
    ) -> BrokerId | None:
        """Assign a bundle that has no owner, or that its owner `source` gives away to another broker. MetadataError.

        None if no broker may have it.
        """
        lock = self._deciding.setdefault(bundle, asyncio.Lock())
        async with lock:
            try:
                return await self._decide(bundle, source, question)
            finally:
                self._deciding.pop(bundle, None)

    async def _decide(self, bundle: Bundle, source: BrokerId | None, question: Node | None) -> BrokerId | None:
        await self._book.ready.wait()
        snapshot, now_s = self._book.snapshot(), asyncio.get_running_loop().time()
        earlier = self._given.get(bundle)
        chosen = None if earlier is None or earlier.broker == source else snapshot.brokers.get(earlier.broker)
        if earlier is not None and now_s - earlier.at_s < ASSIGNED_S and chosen is not None and not chosen.draining:
            await self._store(bundle, Assignment(earlier.broker), question)
            return earlier.broker
        name, rules = BundleName(str(bundle)), self._given.placed_in(await self._rules.rules(), str(bundle.namespace))
        known = self._history.weight_of(name)
        if known is None:
            known = await expected_weight(self._metadata, name)
        snapshot, now_s = _without(self._book.snapshot(), source), asyncio.get_running_loop().time()
        pending = self._given.pending(snapshot.brokers, now_s)
        found = place(name, snapshot, rules, pending, self._settings, known_weight=known)
        if found is None:
            await self._remove(bundle)
            return None
        self._given.add(Given(bundle, found.broker, now_s, found.added))
        self._events.add(EventKind.ASSIGNED, found.explain())
        await self._store(bundle, Assignment(found.broker), question)
        return found.broker

    async def _store(self, bundle: Bundle, assignment: Assignment, node: Node | None) -> None:
        """Write an assignment in place of `node`.

        One to this broker itself is written only over a question: others ask, and get the same answer.
        """
        key, value = key_of(bundle), assignment.encode()
        for _ in range(2):
            if node is None and assignment.broker == self._id and assignment.source is None:
                return
            if node is not None and node.owned and node.value == value:
                return
            try:
                expected = ABSENT if node is None else node.version
                await self._metadata.put(key, value, expected=expected, ephemeral=True)
                return
            except BadVersionError:
                node = await self._metadata.get(key)  # asked again meanwhile

    async def _remove(self, bundle: Bundle) -> None:
        await self._metadata.transact([], [Delete(key_of(bundle))])

    async def _clear_away(self) -> None:
        """Remove assignments that are done or too old. The bundles count as pending until they are in a report."""
        while True:
            await asyncio.sleep(CHECK_S)
            now_s = asyncio.get_running_loop().time()
            for given in self._given.all():
                if now_s - given.at_s < CHECK_S / 2:
                    continue
                try:
                    await self._clear_one(given, now_s - given.at_s)
                except MetadataError as error:
                    _log.info("cannot remove the assignment of %s yet: %s", given.bundle, error)

    async def _clear_one(self, given: Given, age_s: float) -> None:
        bundle = given.bundle
        if given.source is None:
            if age_s >= PENDING_S:
                self._given.remove(given)
            if age_s >= ASSIGNED_S or await self._owner_of(bundle) is not None:
                await self._remove(bundle)
            return
        moved = await self._owner_of(bundle) == given.broker
        if moved or age_s >= MOVE_S:
            await self._remove(bundle)
            self._given.remove(given)
            if not moved:
                text = f"{bundle} has not come from {given.source} to {given.broker}"
                self._events.add(EventKind.GIVEN_UP, text)

    async def _owner_of(self, bundle: Bundle) -> BrokerId | None:
        node = await self._metadata.get(bundle.key)
        if node is None:
            return None
        return BrokerId(owner_urls(decode_json(bundle.key, node.value)).broker_id)

    # moves

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(self._settings.shedding_interval_s)
            if self._settings.shedding:
                try:
                    await self.round()
                except MetadataError as error:
                    _log.info("no round of load balancing now: %s", error)

    def view(self) -> Mapping[BrokerId, BrokerLoad]:
        """Return the load of each broker, as far as this leader knows."""
        return self._book.snapshot().brokers

    async def dry_run(self) -> tuple[Snapshot, SheddingPlan]:
        """Return what a round would move now if each overloaded broker had been overloaded for long enough.

        Any broker may do this; only the leader knows earlier moves. MetadataError.
        """
        snapshot = self._book.snapshot() if self.leads else await read_snapshot(self._metadata, self._clock)
        settings = replace(self._settings, hits=1)
        return snapshot, plan_moves(snapshot, self._state, await self._rules.rules(), settings)

    async def round(self, *, at_once: bool = False) -> SheddingPlan:
        """Plan and order moves. `at_once`: a broker need not have been overloaded for some rounds. MetadataError.

        A round begins when the one before it has ended: it then knows its moves.
        """
        await self._book.ready.wait()
        settings = replace(self._settings, hits=1) if at_once else self._settings
        async with self._rounding:
            rules = await self._rules.rules()
            await self._count_earlier()
            snapshot = self._book.snapshot()
            plan = plan_moves(snapshot, self._state, rules, settings)
            if plan.moves and not await self._election.still_leads():
                return replace(plan, moves=())
            if plan.moves:
                await made_moves.record(self._metadata, self._state.made(snapshot.now_s) + len(plan.moves))
            ordered: list[Move] = []
            try:
                for move in plan.moves:
                    if await self._order(move):
                        ordered.append(move)
            finally:  # also if the store fails between two: the limit and the grace period count those ordered
                plan = replace(plan, moves=tuple(ordered))
                self._state = self._state.after(plan, snapshot.now_s, self._settings)
            return plan

    async def _count_earlier(self) -> None:
        """Count the moves of earlier leaders once in a term, so that the limit holds across a change of leader."""
        if not self._counted:
            count = await made_moves.made_before(self._metadata, self._settings.moves_per_minute_max)
            self._state = replace(self._state, recent=(self._begun_s,) * count)
            self._counted = True

    async def _order(self, move: Move) -> bool:
        bundle = bundle_named(move.bundle)
        if await self._owner_of(bundle) != move.source:
            return False  # it has moved since the report
        await self._store(bundle, Assignment(move.target, move.source), None)
        now_s = asyncio.get_running_loop().time()
        self._given.add(Given(bundle, move.target, now_s, move.usage, move.source))
        self._events.add(EventKind.MOVED, move.explain())
        return True

    async def _record(self) -> None:
        """Record the reports as samples, and write the averages from time to time."""
        loop, settings = asyncio.get_running_loop(), self._settings
        written_s = loop.time()
        while True:
            await asyncio.sleep(settings.report_interval_s)
            self._history.add(self._book.snapshot())
            if loop.time() - written_s < settings.history_interval_s:
                continue
            written_s = loop.time()
            try:
                await self._history.write()
            except MetadataError as error:
                _log.info("cannot write the averages of bundles: %s", error)
