"""A real Prometheus scrapes by our PodMonitors: alerts fire when something breaks and clear afterwards, and every panel
of the dashboards has data. Under load."""

import json
import re
import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e import manifests, nodes, release
from tests.e2e.kube import Manifest, until
from tests.e2e.prometheus import EXPORTER, EXPORTER_PORT, MADE_UP, MONITORING, Prometheus, definitions, exporter
from tests.e2e.release import kubectl
from tests.e2e.stack import BOOKIE_PODS, BROKER_PODS, ETCD_PODS, Stack

Measured = Callable[..., None]
BOARD_LABEL = "grafana_dashboard=1"
MONITORS = {
    f"{manifests.POOL}-bookie",
    f"{manifests.POOL}-autorecovery",
    f"{manifests.LEDGER}-broker",
    f"{manifests.LEDGER}-proxy",
    manifests.OPERATOR,
    manifests.ETCD,
}
SEEN_S = 240.0
WELL_S = 400.0
WINDOW = "30s"
"""Of the rates in panels."""
SETTLED_S = 10.0
"""Healthy values are watched for this long, longer than any alert waits."""
THRESHOLDS = {
    "QuireUnderReplicated": {"> 3600": "> 2"},
    "QuireBacklogGrows": {"> 100000": "> 100"},
    "QuireAddsSlow": {"> 0.5": "> 0.3"},
    "QuireAppendsSlow": {"> 0.05": "> 0.3"},
    "QuireOperationStands": {"> 86400": "> 3"},
}
"""Limits that a test can exceed, and that a busy machine does not, by rule and part of its expression."""


def _series(name: str, good: float, bad: float, base: float | None = None, **labels: str) -> Manifest:
    text = ",".join(f'{key}="{value}"' for key, value in ({"namespace": MADE_UP} | labels).items())
    found: Manifest = {"series": f"{name}{{{text}}}", "good": good, "bad": bad}
    return found if base is None else found | {"base": base}


def _histogram(name: str, fast: str, slow: str) -> list[Manifest]:
    """Return buckets that grow by ten a second: at once in a good state, only from `slow` on in a bad one."""
    return [
        _series(name, 10, 0, 0, le=fast),
        _series(name, 10, 10, 0, le=slow),
        _series(name, 10, 10, 0, le="+Inf"),
    ]


FAR = 4e9
"""A time in the next century."""
SIMULATED: dict[str, list[Manifest]] = {
    "QuireEntriesWithoutCopy": [_series("quire_autorecovery_ledgers_without_copy", 0, 1)],
    "QuireUnrecoverable": [_series("quire_autorecovery_unrecoverable_noted", 0, 1, 0)],
    "QuireBelowAckQuorum": [_series("quire_autorecovery_ledgers_below_ack_quorum", 0, 1)],
    "QuireDamageFound": [_series("quire_bookie_logs_quarantined", 0, 1)],
    "QuireBookieDiskFills": [_series("quire_bookie_disk_free_bytes", 0, -1e7, 1e11)],
    "QuireBookieLimbo": [_series("quire_bookie_limbo", 0, 1)],
    "QuireGarbageCollectionHeld": [_series("quire_gc_fuse_blown", 0, 1)],
    "QuireMetadataLostKeys": [_series("quire_gc_ledgers_returned", 0, 1, 0)],
    "QuireGarbageCollectionInDoubt": [_series("quire_gc_in_doubt", 0, 1)],
    "QuireReadsSlow": _histogram("quire_bookie_read_seconds_bucket", "0.01", "1.0"),
    "QuireManyLedgers": [_series("bookie_ACTIVE_LEDGER_TOTAL", 1, 100001)],
    "QuireAddsFail": [_series("quire_bookie_adds_failed", 0, 2, 0)],
    "QuireCertificateEnds": [_series("quire_bookie_tls_certificate_end_seconds", FAR, 1)],
    "QuireCertificateNotTaken": [_series("quire_bookie_tls_certificate_load_failures", 0, 1, 0)],
    "QuireBrokerRequestsFail": [
        _series("quire_broker_requests_total", 10, 10, 0),
        _series("quire_broker_requests_failed_total", 0, 1, 0),
    ],
    "QuireBrokerBackgroundFailures": [_series("quire_broker_background_failures_total", 0, 1, 0)],
    "QuireBrokerOverloaded": [_series("pulsar_lb_cpu_usage", 10, 95)],
    "QuireNoBrokerLeader": [_series("quire_broker_assignment_fallbacks_total", 0, 1, 0)],
    "QuireProxyWithoutBrokers": [_series("quire_proxy_brokers", 1, 0)],
    "QuireProxyRefusesClients": [_series("pulsar_proxy_rejected_connections", 0, 1, 0)],
    "QuireLoopStalls": _histogram("quire_loop_stall_seconds_bucket", "0.01", "1.0"),
    "QuireManyTopics": [_series("pulsar_broker_topics_count", 1, 10001)],
    "QuireManyCursors": [_series("pulsar_broker_subscriptions_count", 1, 10001)],
    "QuirePassesFail": [_series("quire_operator_reconcile_errors_total", 0, 2, 0, kind="Bookie", error="KubeError")],
    "QuireSlowBookie": [_series("quire_operator_resource_condition", 0, 1, kind="Bookie", type="SlowBookie")],
    "QuireEtcdWithoutLeader": [_series("etcd_server_has_leader", 1, 0)],
    "QuireEtcdFills": [
        _series("etcd_mvcc_db_total_size_in_bytes", 1, 80),
        _series("etcd_server_quota_backend_bytes", 100, 100),
    ],
    "QuireEtcdSlow": _histogram("etcd_disk_wal_fsync_duration_seconds_bucket", "0.001", "1.0"),
    "QuireBackupLate": [_series("kube_cronjob_status_last_successful_time", FAR, 1, cronjob="quire-etcd-backup")],
}
"""Alerts that no outage here causes, with metrics that do."""
started: dict[str, float] = {}


@pytest.fixture
def prometheus(stack: Stack) -> Prometheus:
    """A Prometheus that scrapes every part of the stack; kept by the stack until the dashboards are tested."""
    found = Prometheus(stack.cluster)
    if not found.is_running():
        stack.cluster.apply(*definitions())
        on = {"enabled": True}
        chart = {"podMonitors": on | {"interval": "2s"}, "alerts": on, "dashboards": on}
        release.install(stack.cluster, monitoring=chart)
        pod = manifests.with_code({}, "quire", "bookie", "broker")
        stack.change_proxy({"replicas": 1, "podTemplate": {"spec": pod}})
        until("every part has a PodMonitor", lambda: _monitors(stack) >= MONITORS, SEEN_S)
        found.start(THRESHOLDS)
        started[stack.where] = time.time()
    until("every target is scraped", lambda: not found.unscraped(), SEEN_S)
    return found


def _monitors(stack: Stack) -> set[str]:
    return {one["metadata"]["name"] for one in stack.cluster.items(MONITORING, "PodMonitor")}


class Outage:
    """Breaks something, and repairs it."""

    alerts: tuple[str, ...] = ()

    def __init__(self, stack: Stack, shell: Callable[..., str]) -> None:
        self.stack, self.shell = stack, shell

    def cause(self) -> None:
        """Break it."""
        raise NotImplementedError

    def keep(self) -> None:
        """Continue to break it; called while an alert is awaited."""

    def end(self) -> None:
        """Repair it; also after a failure."""
        raise NotImplementedError


class OperatorStopped(Outage):
    """The operator does not run."""

    alerts = ("QuireOperatorAway",)

    def cause(self) -> None:
        kubectl(self.stack.cluster, "scale", f"deployment/{manifests.OPERATOR}", "--replicas=0")

    def end(self) -> None:
        kubectl(self.stack.cluster, "scale", f"deployment/{manifests.OPERATOR}", "--replicas=1")


class BookieDown(Outage):
    """A bookie cannot start: its machine, which has its volumes, accepts no pods."""

    alerts = ("QuireResourceDegraded", "QuireUnderReplicated", "QuireReplicationStands")
    node = ""

    def cause(self) -> None:
        pod = self.stack.cluster.pods(BOOKIE_PODS)[-1]
        self.node = pod["spec"]["nodeName"]
        kubectl(self.stack.cluster, "cordon", self.node)
        self.stack.cluster.delete("v1", "Pod", pod["metadata"]["name"])

    def end(self) -> None:
        kubectl(self.stack.cluster, "uncordon", self.node)


class NoAutoRecovery(Outage):
    """No process is the auditor."""

    alerts = ("QuireNoAuditor",)

    def cause(self) -> None:
        self.stack.change_pool(autoRecovery={"replicas": 0})

    def end(self) -> None:
        self.stack.change_pool(autoRecovery={"replicas": 2})


class Hang(Outage):
    """The only pod of `pods` does not respond."""

    pods: str

    def cause(self) -> None:
        self._signal("STOP")

    def keep(self) -> None:
        self._signal("STOP")  # the kubelet may have restarted it

    def end(self) -> None:
        self._signal("CONT")

    def _signal(self, signal: str) -> None:
        (pod,) = self.stack.cluster.pods(self.pods)
        nodes.signal_processes(pod["spec"]["nodeName"], pod["metadata"]["name"], signal)


class EtcdHangs(Hang):
    """The only member of etcd does not respond."""

    alerts = ("QuireEtcdMemberAway",)
    pods = ETCD_PODS


class BrokerHangs(Hang):
    """The only broker does not respond."""

    alerts = ("QuireResourceNotReady",)
    pods = BROKER_PODS


class TooFewBookiesWanted(Outage):
    """The spec wants fewer bookies than an ensemble needs."""

    alerts = ("QuireScaleDownBlocked",)

    def cause(self) -> None:
        self.stack.change_pool(replicas=2)

    def end(self) -> None:
        self.stack.change_pool(replicas=3)


class BookieReadOnly(Outage):
    """A bookie accepts no new ledgers."""

    alerts = ("QuireBookieReadOnly",)

    def cause(self) -> None:
        self._set("on")

    def end(self) -> None:
        self._set("off")

    def _set(self, state: str) -> None:
        http = f"https://{manifests.POOL}-bookie-2.{manifests.POOL}-bookie.{self.stack.where}.svc:8000"
        self.shell("bookie", "read-only", state, "--http", http)


class BookieStutters(Outage):
    """A bookie stops again and again, as one does whose disk hangs."""

    alerts = ("QuireAddsSlow", "QuireAppendsSlow")

    def cause(self) -> None:
        self.keep()

    def keep(self) -> None:
        pod = self._pod()
        nodes.stutter(pod["spec"]["nodeName"], pod["metadata"]["name"])

    def end(self) -> None:
        pod = self._pod()
        nodes.signal_processes(pod["spec"]["nodeName"], pod["metadata"]["name"], "CONT")

    def _pod(self) -> Manifest:
        return self.stack.cluster.pods(BOOKIE_PODS)[0]


class OldMessagesRead(Outage):
    """Readers start at the beginning of the topics."""

    alerts = ("QuireCacheHitsDrop",)

    def cause(self) -> None:
        self.stack.load("/reread/start")

    def keep(self) -> None:
        if self.stack.load("/reread")["reread"] is not None:
            self.stack.load("/reread/start")

    def end(self) -> None:
        until("everything is read again", lambda: self.stack.load("/reread")["reread"], WELL_S)


class NoConsumer(Outage):
    """A subscription has no consumers."""

    alerts = ("QuireBacklogGrows",)

    def cause(self) -> None:
        self.stack.admin("PUT", "load-0/subscription/forgotten")

    def end(self) -> None:
        self.stack.admin("DELETE", "load-0/subscription/forgotten")


class SlowDrain(Outage):
    """A drain has not ended after three seconds."""

    alerts = ("QuireOperationStands",)

    def cause(self) -> None:
        self.stack.change_pool(replicas=4)
        self.stack.wait_until_well(WELL_S, replicas=4)
        self.stack.goes_on(4000)
        self.stack.change_pool(replicas=3)

    def end(self) -> None:
        self.stack.change_pool(replicas=3)


OUTAGES = (
    OperatorStopped,
    BookieDown,
    NoAutoRecovery,
    EtcdHangs,
    BrokerHangs,
    TooFewBookiesWanted,
    BookieReadOnly,
    BookieStutters,
    OldMessagesRead,
    NoConsumer,
    SlowDrain,
)


@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.__name__)
def test_an_alert_fires_during_an_outage_and_clears_afterwards(
    stack: Stack, prometheus: Prometheus, shell: Callable[..., str], measured: Measured, outage: type[Outage]
) -> None:
    broken, waiting = outage(stack, shell), set(outage.alerts)
    until("none of them is pending", lambda: not waiting & prometheus.firing(pending=True), SEEN_S)
    try:
        broken.cause()
        start_s = time.monotonic()

        def fired() -> bool:
            broken.keep()
            waiting.difference_update(prometheus.firing())
            return not waiting

        until(f"{', '.join(outage.alerts)} fire", fired, SEEN_S)
        measured("alerts fired after", time.monotonic() - start_s)
    finally:
        broken.end()
    start_s = time.monotonic()
    until("they clear", lambda: not prometheus.firing() & set(outage.alerts), WELL_S)
    measured("alerts cleared after", time.monotonic() - start_s)
    stack.wait_until_well(WELL_S)
    stack.goes_on()
    stack.check()


def test_all_other_alerts_fire_and_clear_with_made_up_metrics(
    stack: Stack, prometheus: Prometheus, measured: Measured
) -> None:
    caused = {name for outage in OUTAGES for name in outage.alerts}
    rules = stack.cluster.items(MONITORING, "PrometheusRule")
    every = {rule["alert"] for found in rules for group in found["spec"]["groups"] for rule in group["rules"]}
    assert every - caused == SIMULATED.keys(), "an outage or made-up metrics for each alert"
    stack.cluster.apply(*exporter([series for several in SIMULATED.values() for series in several]))
    try:
        until("the exporter is scraped", lambda: prometheus.query(f'up{{job="{EXPORTER}"}} == 1'), SEEN_S)
        time.sleep(SETTLED_S)
        assert not prometheus.firing(made_up=True), "healthy values are no reason for an alert"
        for state, wanted in (("bad", SIMULATED.keys()), ("good", set())):
            start_s = time.monotonic()
            stack.cluster.ask_pod(EXPORTER, EXPORTER_PORT, "/switch", to=state).expect()
            until(f"{len(wanted)} alerts fire", lambda it=wanted: prometheus.firing(made_up=True) == it, SEEN_S)  # type: ignore[misc]
            measured(f"alerts of {state} values after", time.monotonic() - start_s)
    finally:
        stack.cluster.delete("v1", "Pod", EXPORTER, grace_s=0)


def test_every_panel_of_every_dashboard_has_data(stack: Stack, prometheus: Prometheus, measured: Measured) -> None:
    boards = [
        json.loads(text)
        for found in stack.cluster.items("v1", "ConfigMap", BOARD_LABEL)
        for text in found["data"].values()
    ]
    until("a proxy was scraped twice", lambda: prometheus.query(f"rate(pulsar_proxy_binary_bytes[{WINDOW}])"), WELL_S)
    start_s, asked, empty = started[stack.where], 0, []
    for title, expression in _queries(boards):
        filled = expression.replace("$namespace", stack.where).replace("$__rate_interval", WINDOW)
        asked += 1
        if not prometheus.query_range(filled, start_s, time.time(), 10):
            empty.append(f"{title}: {filled}")
    assert not empty, "\n".join(empty)
    measured("queries of panels with data", float(asked), "")
    stack.change_proxy(None)
    prometheus.stop()


def _queries(boards: list[Manifest]) -> Iterator[tuple[str, str]]:
    """Return title and query of every panel and variable."""
    for board in boards:
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield f"{board['title']}: {panel['title']}", target["expr"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                metric = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
                assert metric is not None, variable
                yield f"{board['title']}: {variable['name']}", f'{metric[1]}{{{metric[2]}!=""}}'
