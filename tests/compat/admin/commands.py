"""The commands of pulsar-admin that `make admin-table` runs, with arguments that mean something. Data only.

A line, here or in `commands.txt`, is a command, optionally followed by ` => ` and the command that reads back its
effect. Its first sign selects the comparison beside success: `=` the output without ids and times, `~` names and types
in the output, `!` nothing. `@` begins a step of `AdminBatch.java` that only prepares, `+` a command that only prepares.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

TOPIC: Final = "persistent://t1/ns/policies"
SPACE: Final = "t1/policies"
_RATE: Final = "--msg-dispatch-rate 1000 --byte-dispatch-rate 1048576 --dispatch-rate-period 1"
_UNTIL_IDLE: Final = (
    "--enable-delete-while-inactive --max-inactive-duration 3600 --delete-mode delete_when_no_subscriptions"
)

POLICIES: Final = {
    "message-ttl": "--ttl 60",
    "retention": "--time 10m --size 10M",
    "backlog-quota": "--limit 10M --policy producer_exception",
    "deduplication": "--enable",
    "deduplication-snapshot-interval": "--interval 100",
    "delayed-delivery": "--enable --time 2s",
    "persistence": "--bookkeeper-ensemble 1 --bookkeeper-write-quorum 1 --bookkeeper-ack-quorum 1",
    "offload-policies": "--driver aws-s3 --region us-east-1 --bucket logs",
    "dispatch-rate": _RATE,
    "subscription-dispatch-rate": _RATE,
    "replicator-dispatch-rate": _RATE,
    "publish-rate": "--msg-publish-rate 1000 --byte-publish-rate 1048576",
    "subscribe-rate": "--subscribe-rate 10 --subscribe-rate-period 30",
    "compaction-threshold": "--threshold 10M",
    "inactive-topic-policies": _UNTIL_IDLE,
    "max-unacked-messages-on-consumer": "--maxNum 500",
    "max-unacked-messages-per-consumer": "--maxNum 500",
    "max-unacked-messages-on-subscription": "--maxNum 600",
    "max-unacked-messages-per-subscription": "--maxNum 600",
    "subscription-types-enabled": "--types Shared,Exclusive",
    "maxProducers": "--max-producers 7",
    "max-producers": "--max-producers 7",
    "max-consumers": "--max-consumers 8",
    "max-subscriptions": "--max-subscriptions-per-topic 9",
    "max-subscriptions-per-topic": "--max-subscriptions-per-topic 9",
    "max-message-size": "--max-message-size 1024",
    "max-consumers-per-subscription": "--max-consumers-per-subscription 6",
    "replication-clusters": "--clusters standalone",
    "schema-compatibility-strategy": "--strategy FORWARD",
    "schema-validation-enforce": "--enable",
    "entry-filters-per-topic": "--entry-filters-name none",
    "auto-subscription-creation": "--enable",
    "dispatcher-pause-on-ack-state-persistent": "",
}
"""The options of `set-<policy>` of topics, and of namespaces unless they are below."""

OF_NAMESPACES: Final = {
    "message-ttl": "--messageTTL 60",
    "clusters": "--clusters standalone",
    "allowed-clusters": "--clusters standalone",
    "max-producers-per-topic": "--max-producers-per-topic 7",
    "max-consumers-per-topic": "--max-consumers-per-topic 8",
    "max-unacked-messages-per-subscription": "--max-unacked-messages-per-subscription 600",
    "max-unacked-messages-per-consumer": "--max-unacked-messages-per-topic 500",
    "subscription-expiration-time": "--time 30",
    "anti-affinity-group": "--group g1",
    "auto-topic-creation": "--enable --type partitioned --num-partitions 3",
    "bookie-affinity-group": "--primary-group default",
    "encryption-required": "--enable",
    "subscription-auth-mode": "--subscription-auth-mode Prefix",
    "offload-threshold": "--size 10M",
    "offload-deletion-lag": "--lag 1h",
    "schema-autoupdate-strategy": "--compatibility Full",
    "schema-compatibility-strategy": "--compatibility FORWARD",
    "is-allow-auto-update-schema": "--disable",
    "max-topics-per-namespace": "--max-topics-per-namespace 100",
    "resource-group": "--resource-group-name rg1",
    "entry-filters": "--entry-filters-name none",
}
_READ_BY: Final = {"backlog-quota": "backlog-quotas", "max-message-size": "max-message-size"}
_REMOVED_BY: Final = {
    "anti-affinity-group": "delete-anti-affinity-group",
    "bookie-affinity-group": "delete-bookie-affinity-group",
    "offload-deletion-lag": "clear-offload-deletion-lag",
}


def policy_lines(names: Iterable[str]) -> Iterator[str]:
    """Yield, for each policy of the commands `names`, its reading, its setting and its removal, each read back."""
    known = set(names)
    for group, subject in (("namespaces", SPACE), ("topics", TOPIC), ("topicPolicies", TOPIC)):
        options = POLICIES | OF_NAMESPACES if group == "namespaces" else POLICIES
        for policy, words in options.items():
            setting = f"{group} set-{policy}"
            if setting not in known:
                continue
            plural = f"{group} get-{_READ_BY.get(policy, policy)}"
            reading = f"{plural if plural in known else f'{group} get-{policy}'} {subject}"
            removal = f"{group} {_REMOVED_BY.get(policy, f'remove-{policy}')}"
            yield f"= {reading}"
            yield f"= {setting} {subject} {words} => {reading}"
            if removal in known:
                yield f"= {removal} {subject} => {reading}"


LINES: Final = (Path(__file__).parent / "commands.txt").read_text().splitlines()

SKIPPED: Final = {
    "brokers shutdown": "it ends the broker that answers",
    "documents generate": "it prints help and calls no broker",
    "schemas extract": "it needs a jar of the user's classes",
    "proxy-stats": "it calls a proxy",
    "functions": "functions, sources, sinks and packages are not part of Quire",
    "functions-worker": "functions, sources, sinks and packages are not part of Quire",
    "sources": "functions, sources, sinks and packages are not part of Quire",
    "sinks": "functions, sources, sinks and packages are not part of Quire",
    "packages": "functions, sources, sinks and packages are not part of Quire",
    "transactions": "it needs a running transaction",
}
"""Commands and groups that are not run, unless a line above does, and why."""
