"""Which loaded topics each periodic check has to visit, so that a topic that rests costs none of them anything.

    note     a topic was loaded, got a message, a client, a cursor or other policies, or its traffic ended
    round    visits the topics that were noted since the last round, those with traffic, and those that it kept
    tick     periodic work of topics with traffic: rates, snapshots

A change is noted once for all checks, which get it at their next rounds. A check must keep a topic that may need it
later without a change, such as one whose messages grow old. A topic that is no longer loaded must be forgotten.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import TypeAlias

from quire_broker.topic.topic import Topic

Steps: TypeAlias = Callable[[list[Topic]], AsyncIterator[Topic]]
"""Yields the topics that are still loaded, a few in each step of the event loop."""


class ChangedTopics:
    """The topics that one check has to visit."""

    def __init__(self, changes: "TopicChanges", due: Iterable[Topic], on_forgotten: Callable[[Topic], None]) -> None:
        """Use `TopicChanges.check` instead."""
        self._changes = changes
        self._on_forgotten = on_forgotten
        self.due = dict.fromkeys(due)
        """Topics of the next round, as far as they are passed on; in a fixed order."""

    async def round(self) -> AsyncIterator[Topic]:
        """Yield each topic once. One that was not reached, because of an error, is left for the next round."""
        self._changes.pass_on()
        async for topic in self._changes.in_steps(list(self.due)):
            self.due.pop(topic, None)
            yield topic

    def keep(self, topic: Topic) -> None:
        """Visit a topic in the next round, too."""
        self.due[topic] = None

    def forget(self, topic: Topic) -> None:
        """Drop a topic that is no longer loaded."""
        self.due.pop(topic, None)
        self._on_forgotten(topic)


class TopicChanges:
    """Knows which loaded topics of one broker have traffic, and collects the changes of all."""

    def __init__(self, in_steps: Steps) -> None:
        self.in_steps = in_steps
        self._active: dict[Topic, None] = {}
        """Topics with traffic, in a fixed order. Their single changes need not be noted."""
        self._noted: dict[Topic, None] = {}
        self._checks: list[ChangedTopics] = []

    def follow(self, topic: Topic) -> None:
        """Note the changes of a topic that was loaded, until `forget`."""
        topic.on_activity = self._became_active
        topic.on_change = topic.ledger.on_change = partial(self.note, topic)
        self._became_active(topic)

    def _became_active(self, topic: Topic) -> None:
        self._active[topic] = None
        self.note(topic)

    def note(self, topic: Topic) -> None:
        """Let every check visit a topic in its next round. Called for each batch of messages."""
        self._noted[topic] = None

    def forget(self, topic: Topic) -> None:
        """Drop a topic that is closed; what it still does must not keep it in memory."""
        topic.on_activity = lambda topic: None
        topic.on_change = topic.ledger.on_change = lambda: None
        for topics in (self._active, self._noted):
            topics.pop(topic, None)
        for check in self._checks:
            check.forget(topic)

    async def tick(self) -> None:
        """Run the periodic work of the topics with traffic, a few in each step of the event loop."""
        async for topic in self.in_steps(list(self._active)):
            if not topic.tick():
                self._active.pop(topic, None)
                self.note(topic)

    def check(self, loaded: Iterable[Topic], on_forgotten: Callable[[Topic], None]) -> ChangedTopics:
        """Return the topics of a new check, at first all that are loaded. It must run rounds until the broker ends.

        `on_forgotten`: called for each topic that is no longer loaded, visited or not.
        """
        found = ChangedTopics(self, loaded, on_forgotten)
        self._checks.append(found)
        return found

    def pass_on(self) -> None:
        """Pass the changes on to the checks."""
        for check in self._checks:
            check.due.update(self._noted)
            check.due.update(self._active)
        self._noted.clear()
