"""Resolves a job's list of topics: names and patterns, mixed, each topic once. Reads metadata only."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quire_broker.names import TopicName
from quire_jobs.errors import NotFoundError
from quire_jobs.source.catalog import logs_named, topic_of_log
from quire_jobs.source.cluster import Cluster
from quire_jobs.source.options import SourceOptions, parse_options


@dataclass(frozen=True, slots=True)
class Subjects:
    """The topics of a list. `by_name`: the topics of each name or pattern, partitions separately, in the order of the
    list; a topic may appear under several. `unmatched`: patterns that no topic matches yet."""

    by_name: Mapping[str, tuple[TopicName, ...]]
    unmatched: tuple[str, ...] = ()

    @property
    def topics(self) -> tuple[TopicName, ...]:
        """All topics, each once."""
        return tuple(dict.fromkeys(topic for topics in self.by_name.values() for topic in topics))

    @property
    def disjoint(self) -> tuple[str, ...]:
        """Names and patterns that select the same topics, each once. A name that others cover completely is left out,
        and one that others cover in part is replaced by its remaining topics. Of two with the same topics, a pattern
        stays, for it may select more of them later."""
        found: list[str] = []
        covered: set[TopicName] = set()
        for name, topics in sorted(self.by_name.items(), key=lambda item: (-len(item[1]), not is_pattern(item[0]))):
            fresh = [topic for topic in topics if topic not in covered]
            found += [name] if len(fresh) == len(topics) else map(str, fresh)
            covered.update(fresh)
        return tuple(found)


def is_pattern(name: str) -> bool:
    """Return whether the name is a pattern."""
    return "*" in name or "?" in name


def subject_option(name: str) -> dict[str, str]:
    """Return the option of the source that selects this name or pattern."""
    return {"topics" if is_pattern(name) else "topic": name}


def wanted(metadata: str, names: Iterable[str]) -> dict[str, SourceOptions]:
    """Return the options that find each name or pattern. JobOptionsError if one is invalid."""
    return {name: parse_options({"metadata": metadata, **subject_option(name)}) for name in names}


async def find_topics(cluster: Cluster, asked: Mapping[str, SourceOptions]) -> Subjects:
    """Find the topics of `wanted`. NotFoundError if a name has no topic; a pattern without topics is allowed."""
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
    return Subjects(found, tuple(unmatched))
