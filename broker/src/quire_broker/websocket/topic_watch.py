"""The topics that match a pattern, for a session: the list of a broker, and its changes.

The session asks the owner of the topic that the text of the pattern would name, as every broker has the list. That
broker checks the permission of the client, and bounds the pattern. After a lost connection the session asks again.
"""

from collections.abc import Callable

from quire_broker.names import TopicName, parse_topic
from quire_broker.server.broker_link import BrokerLink
from quire_broker.websocket.attachment import Attachment, Links
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb


class TopicWatch(Attachment):
    """Owns the names of the topics, partitions of partitioned ones each."""

    def __init__(self, links: Links, pattern: TopicName, changed: Callable[[], None]) -> None:
        """`pattern`: its local name is the regular expression; `changed`: called after each change of `topics`."""
        super().__init__(links, pattern)
        self._changed = changed
        self.topics: frozenset[TopicName] = frozenset()

    async def _open(self, link: BrokerLink) -> None:
        namespace = str(self.topic.namespace)
        pattern = f"{namespace}/{self.topic.local}"  # without persistent://, as its length is limited
        body = pb.CommandWatchTopicList(watcher_id=self.number, namespace=namespace, topics_pattern=pattern)
        await link.ask(pb.BaseCommand(type=Kind.WATCH_TOPIC_LIST, watch_topic_list=body), "watch_topic_list")

    def listed(self, frame: pb.BaseCommand) -> None:
        """Take the list, which comes first after each attachment, or a change of it."""
        if frame.type == Kind.WATCH_TOPIC_LIST_SUCCESS:
            self.topics = frozenset(map(parse_topic, frame.watch_topic_list_success.topic))
        else:
            update = frame.watch_topic_update
            gone = set(map(parse_topic, update.deleted_topics))
            self.topics = (self.topics - gone) | set(map(parse_topic, update.new_topics))
        self._changed()
