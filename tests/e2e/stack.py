"""One namespace with a release of the chart, a pool, a ManagedLedger and the load: creates and observes it."""

import time
from dataclasses import dataclass, field
from typing import Any

from tests.e2e import manifests, release
from tests.e2e.kube import Cluster, Manifest, condition, holds, is_ready, until

APPS = "apps/v1"
BOOKIE_PODS, BROKER_PODS, OPERATOR_PODS, ETCD_PODS = (
    f"app.kubernetes.io/name=quire-{part}" for part in ("bookie", "broker", "operator", "etcd")
)
SETTLE_S = 120.0
REREAD_S = 1500.0


@dataclass
class Stack:
    """Owns the namespace that a scenario works on."""

    cluster: Cluster
    replicas: int
    topics: int = 4
    rate: int = 100
    etcd_members: int = 1
    load_apart: bool = False
    """The load runs on the control plane, so that every worker may fail."""
    load_pod: str = manifests.LOAD
    """The load that `goes_on`, `check` and the like look at."""
    pool_spec: Manifest = field(default_factory=dict)
    """Fields of the pool that differ."""
    timings: dict[str, float] = field(default_factory=dict)
    broken: bool = False

    @property
    def where(self) -> str:
        """The stack's namespace."""
        return self.cluster.namespace

    def create(self, timeout_s: float = 400.0) -> None:
        """Create everything and wait for the first acknowledged message; times count from applying the resources."""
        self.cluster.apply(manifests.namespace(self.where))
        installed_s = time.time()
        release.install(self.cluster, **self._changes())
        self.timings["the chart's operator and etcd ready"] = time.time() - installed_s
        applied_s = time.time()
        pool, ledger = (
            manifests.bookie(self.where, self.replicas, **self.pool_spec),
            manifests.managed_ledger(self.where),
        )
        self.cluster.apply(pool, ledger)
        until("the brokers have a certificate", self._has_certificate, timeout_s)
        self.cluster.apply(*manifests.load(self.where, self.topics, self.rate, self.load_apart))
        bound = until("claims are bound", lambda: self._claims_bound(self.replicas), timeout_s)
        self.timings["claims bound"] = bound - applied_s
        until("bookies are ready", lambda: self._ready(BOOKIE_PODS, self.replicas), timeout_s)
        self.timings["bookies ready"] = time.time() - applied_s
        first_s = until("a message is acknowledged", self._first_ack_s, timeout_s)
        self.timings["first acknowledged message"] = first_s - applied_s
        self.timings["from the last claim to the first acknowledged message"] = first_s - bound

    def _changes(self) -> Manifest:
        """Return changes of the chart's values."""
        return {} if self.etcd_members == 1 else {"etcd": self.etcd_values()}

    def etcd_values(self) -> Manifest:
        """Return the values of the chart's etcd that differ from those of a single member."""
        return {"members": self.etcd_members, "nodeSelector": {}}

    def _has_certificate(self) -> bool:
        return self.cluster.get("v1", "Secret", manifests.BROKER_CERTIFICATE) is not None

    def _claims_bound(self, replicas: int) -> float | None:
        claims = self.cluster.items("v1", "PersistentVolumeClaim", BOOKIE_PODS)
        phases = [claim["status"].get("phase") for claim in claims]
        return time.time() if len(claims) == 2 * replicas and set(phases) == {"Bound"} else None

    def _first_ack_s(self) -> float | None:
        times = [lane["first_ack_s"] for lane in self.load()["lanes"]]
        return None if None in times else float(max(times))

    def _ready(self, selector: str, count: int) -> bool:
        pods = self.cluster.pods(selector)
        return len(pods) == count and all(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)

    def wait_for_pods(self, selector: str, count: int, timeout_s: float) -> None:
        """Wait for exactly `count` pods, all ready."""
        until(f"{count} ready pods of {selector}", lambda: self._ready(selector, count), timeout_s)

    def pool(self) -> Manifest:
        """Return the current Bookie resource."""
        return self.cluster.get(manifests.API_VERSION, "Bookie", manifests.POOL) or {}

    def ids(self) -> dict[str, str]:
        """Return the ids of the pool's bookies by pod, without those not known yet."""
        return {row["pod"]: row["id"] for row in self.pool()["status"]["bookies"] if "id" in row}

    def volumes_of(self, pod: str, template: str = "") -> list[str]:
        """Return the folders of a bookie's volumes on its machine. `template`: the beginning of the claims' names."""
        found = []
        for claim in self.cluster.items("v1", "PersistentVolumeClaim", BOOKIE_PODS):
            name = str(claim["metadata"]["name"])
            if name.startswith(template) and name.endswith(f"-{pod}"):
                volume = self.cluster.get("v1", "PersistentVolume", claim["spec"]["volumeName"])
                assert volume is not None, claim
                found.append(str(volume["spec"]["local"]["path"]))
        return found

    def events(self, kind: str) -> list[str]:
        """Return the reasons of the events about resources of a kind."""
        return [one["reason"] for one in self.cluster.items("v1", "Event", field=f"involvedObject.kind={kind}")]

    def change_pool(self, **spec: Any) -> None:
        """Change fields of the pool's spec."""
        self.cluster.merge(manifests.API_VERSION, "Bookie", manifests.POOL, {"spec": spec})

    def admin(self, method: str, path: str, **query: str) -> None:
        """Send a request below `/admin/v2/persistent/` of the load's namespace to the first broker."""
        broker = f"/api/v1/namespaces/{self.where}/pods/https:{manifests.LEDGER}-broker-0:8443/proxy"
        wanted = f"{broker}/admin/v2/persistent/{manifests.PULSAR_NAMESPACE}/{path}"
        answer = self.cluster.api.call(method, wanted, query=query)
        assert answer.ok, answer

    def change_proxy(self, proxy: Manifest | None) -> None:
        """Change fields of the proxy of the ManagedLedger; None removes it."""
        self.cluster.merge(manifests.API_VERSION, "ManagedLedger", manifests.LEDGER, {"spec": {"proxy": proxy}})

    def wait_until_well(self, timeout_s: float, replicas: int | None = None) -> None:
        """Wait until no operation runs, all wanted bookies are writable, and every entry has all of its replicas."""
        wanted = replicas if replicas is not None else self.replicas

        def look() -> bool:
            pool = self.pool()
            status = pool.get("status", {})
            return (
                status.get("observedGeneration") == pool["metadata"]["generation"]
                and all(holds(pool, kind) for kind in ("Ready", "FullyReplicated", "Quiesced", "MetadataReachable"))
                and status.get("replicas") == status.get("writable") == wanted
                and self._ready(BOOKIE_PODS, wanted)
            )

        try:
            until(f"the pool is well with {wanted} bookies", look, timeout_s, poll_s=1.0)
        except AssertionError as error:
            status = self.pool().get("status", {})
            raise AssertionError(f"{error}\n{self._explained(status)}") from error

    @staticmethod
    def _explained(status: Manifest) -> str:
        said = [
            f"{one['type']}={one['status']} {one['reason']}: {one['message']}" for one in status.get("conditions", [])
        ]
        return "\n".join([*said, f"operation: {status.get('operation')}", f"bookies: {status.get('bookies')}"])

    def wait_for_condition(self, kind: str, status: str, timeout_s: float) -> Manifest:
        """Wait for a condition of the pool."""

        def look() -> Manifest | None:
            found = condition(self.pool(), kind)
            return found if found is not None and found["status"] == status else None

        return until(f"{kind} is {status}", look, timeout_s)

    def operation(self) -> Manifest:
        """Return the running operation; empty if none."""
        found: Manifest = self.pool().get("status", {}).get("operation") or {}
        return found

    def load(self, path: str = "/status", **query: str) -> Manifest:
        """Send a request to the load; `/settle` and `/reread` check the messages."""
        answer = self.cluster.ask_pod(self.load_pod, manifests.LOAD_PORT, path, **query)
        return answer.expect()

    def acknowledged(self) -> int:
        """Return the number of acknowledged messages of all topics."""
        return sum(lane["acknowledged"] for lane in self.load()["lanes"])

    def goes_on(self, messages: int = 200) -> None:
        """Wait until the load gets `messages` more acknowledgements."""
        before = self.acknowledged()
        until(f"{messages} more messages", lambda: self.acknowledged() >= before + messages, 120)

    def longest_pause_s(self) -> float:
        """Return the longest time without an acknowledgement on any topic since the last call."""
        return max(float(lane["longest_pause_s"]) for lane in self.load(fresh="1")["lanes"])

    def set_rate(self, rate: int) -> None:
        """Set the messages a second of each topic."""
        self.load("/rate", rate=str(rate))

    def check(self) -> None:
        """Check that exactly the acknowledged messages were read, in order. AssertionError with the faults."""
        deadline_s = time.monotonic() + SETTLE_S
        while True:
            # With short timeouts, as the API server ends a proxied request after a minute.
            faults = self.load("/settle", timeout="20")["faults"]
            if not faults or time.monotonic() > deadline_s:
                break
        assert not faults, faults

    def check_all(self) -> int:
        """Check as `check` does, and read everything again from the beginning. Returns the number of messages."""
        self.check()
        self.load("/reread/start")
        said = until("everything is read again", self._reread, REREAD_S, poll_s=1.0)
        assert not said["faults"], said["faults"]
        return int(said["acknowledged"])

    def _reread(self) -> Manifest | None:
        found: Manifest | None = self.load("/reread")["reread"]
        return found
