"""Owns the load balancing of one broker: its parts, their tasks, and their end."""

from quire_bookie.env.background import Background
from quire_bookie.env.clock import WallClock
from quire_bookie.metadata.store import MetadataStore
from quire_broker.balancing.assignments import Assignments
from quire_broker.balancing.bundle_counts import BundleCounts
from quire_broker.balancing.events import BalancingEvents
from quire_broker.balancing.leader import Leader
from quire_broker.balancing.reporter import Reporter
from quire_broker.balancing.splitter import Splitter
from quire_broker.balancing.usage import UsageMeter
from quire_broker.ownership.isolation import Isolation
from quire_broker.ownership.owners import Owners
from quire_broker.ownership.registration import Registration
from quire_broker.policies.store import PolicyStore
from quire_broker.settings.balancing import BalancingSettings
from quire_broker.topic.topics import Topics


class Balancing:
    """The parts of load balancing. Public to the admin API."""

    def __init__(
        self,
        metadata: MetadataStore,
        policies: PolicyStore,
        owners: Owners,
        registration: Registration,
        isolation: Isolation,
        broker_id: str,
        clock: WallClock,
        settings: BalancingSettings,
    ) -> None:
        self.settings = settings
        self.events = BalancingEvents(clock)
        self.assignments = Assignments(metadata, broker_id, isolation, owners.holds, self.events)
        web = owners.urls.web
        self.leader = Leader(metadata, policies, broker_id, web, self.assignments, self.events, clock, settings)
        self.splitter = Splitter(metadata, owners, policies, self.events, settings)
        self.registration = registration
        self._owners, self._policies = owners, policies
        self._broker_id, self._clock = broker_id, clock
        self._tasks = Background()
        self.reporter: Reporter | None = None
        self.counts: BundleCounts | None = None

    def start(self, topics: Topics, meter: UsageMeter) -> None:
        """Begin to report, to take part in elections and to follow assignments."""
        self.counts = BundleCounts(self._owners, self._policies, topics)
        self.reporter = Reporter(
            self._broker_id,
            self.registration,
            self._owners,
            self.counts,
            meter,
            self._clock,
            self.settings,
            self.splitter.check,
        )
        self._tasks.keep(self.reporter.run, "load reports")
        if self.settings.enabled:
            self._tasks.keep(self.assignments.follow, "assignments of bundles")
            self._tasks.keep(self.leader.run, "leader of the brokers")

    @property
    def failures(self) -> int:
        """How many of its tasks ended with an error, and were started again."""
        return self._tasks.failures

    async def close(self) -> None:
        """Stop, and give leadership up."""
        self.assignments.closed = True
        await self._tasks.close()
