"""What a job's list of topics means: names and patterns, mixed, each topic once. Reads metadata only."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quire_broker.topic.topic_names import TopicName
from quire_jobs.errors import NotFoundError
from quire_jobs.source.catalog import logs_named, topic_of_log
from quire_jobs.source.cluster import Cluster
from quire_jobs.source.options import SourceOptions, parse_options


@dataclass(frozen=True, slots=True)
class Named:
    """`by_name`: the topics that each name or pattern means, partitions by themselves, in the order of the list; those
    that an earlier one means as well are there again. `unmatched`: patterns that no topic matches yet."""

    by_name: Mapping[str, tuple[TopicName, ...]]
    unmatched: tuple[str, ...] = ()

    @property
    def topics(self) -> tuple[TopicName, ...]:
        """Each once."""
        return tuple(dict.fromkeys(topic for topics in self.by_name.values() for topic in topics))

    @property
    def disjoint(self) -> tuple[str, ...]:
        """Names and patterns that mean the same topics, each once. Those that others cover are left out, and one that
        others cover in part is given by its other topics."""
        found: list[str] = []
        covered: set[TopicName] = set()
        for name, topics in sorted(self.by_name.items(), key=lambda item: -len(item[1])):
            fresh = [topic for topic in topics if topic not in covered]
            found += [name] if len(fresh) == len(topics) else map(str, fresh)
            covered.update(fresh)
        return tuple(found)


def is_pattern(name: str) -> bool:
    """Whether it means all topics that match."""
    return "*" in name or "?" in name


def subject_option(name: str) -> dict[str, str]:
    """The option of the source that means it."""
    return {"topics" if is_pattern(name) else "topic": name}


def wanted(metadata: str, names: Iterable[str]) -> dict[str, SourceOptions]:
    """The options by which each is found. JobOptionsError: one is no name and no pattern."""
    return {name: parse_options({"metadata": metadata, **subject_option(name)}) for name in names}


async def topics_named(cluster: Cluster, asked: Mapping[str, SourceOptions]) -> Named:
    """What is there of `wanted`. NotFoundError: there is no topic of a name; a pattern's may come later."""
    found: dict[str, tuple[TopicName, ...]] = {}
    unmatched: list[str] = []
    for name, options in asked.items():
        try:
            logs = await logs_named(cluster, options)
        except NotFoundError:
            if not is_pattern(name):
                raise
            unmatched.append(name)
            continue
        found[name] = tuple(topic for log in logs if (topic := topic_of_log(log)) is not None)
    return Named(found, tuple(unmatched))
