"""Manual changes of children, a pause, other certificates and a deletion of the resources. All under load."""

import base64
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

from quire_operator.certificates import issuing
from quire_operator.certificates.deciding import AUTHORITY_LIFE_S, TRUST_FIRST_S
from quire_operator.certificates.keeping import AUTHORITY
from tests.e2e import manifests, nodes
from tests.e2e.kube import Manifest, condition, until
from tests.e2e.quire_plugin import asked, kubectl_quire
from tests.e2e.release import kubectl
from tests.e2e.stack import APPS, BOOKIE_PODS, BROKER_PODS, Stack

Measured = Callable[..., None]
WELL_S = 300.0
PUT_BACK_S = 60.0
QUIET_S = 20.0
"""How long a paused operator is observed: several reconciliations."""
TRUSTED_FIRST_S = 120.0
"""Time from the next authority's appearance in `ca.crt` to its first certificate; a week by default. The operator
caches Secrets for one minute, and the pods get Secrets at once, since they are touched."""
PARTS = {BOOKIE_PODS: (f"{manifests.POOL}-bookie-tls", 8000), BROKER_PODS: (manifests.BROKER_CERTIFICATE, 8443)}
"""Secret of the serving certificate and a TLS port, by pods."""
SHOW = "import ssl, sys; print(ssl.get_server_certificate(('127.0.0.1', int(sys.argv[1]))))"
BUDGET = ("policy/v1", "PodDisruptionBudget", f"{manifests.POOL}-bookie")
SETTINGS = ("v1", "ConfigMap", f"{manifests.POOL}-autorecovery")


@pytest.mark.e2e_short
def test_manual_changes_are_reverted(stack: Stack, measured: Measured) -> None:
    before = stack.ids()
    start_s = time.monotonic()
    stack.cluster.merge(*BUDGET, {"spec": {"maxUnavailable": 3}})
    stack.cluster.delete(*SETTINGS)
    kubectl(stack.cluster, "scale", f"statefulset/{manifests.POOL}-bookie", "--replicas=2")
    until("the settings are restored", lambda: stack.cluster.get(*SETTINGS), PUT_BACK_S)
    until("the budget is as it was", lambda: _budget(stack) in (0, 1), PUT_BACK_S)
    until("three replicas are wanted", lambda: _replicas(stack) == stack.replicas, PUT_BACK_S)
    measured("put back after", time.monotonic() - start_s)
    stack.wait_until_well(WELL_S)
    assert stack.ids() == before
    stack.goes_on()
    stack.check()


def test_kubectl_quire_shows_the_state_of_everything(stack: Stack, tmp_path: Path) -> None:
    status = asked(stack, "status")
    assert [one["findings"] for one in (*status["bookies"], *status["managedLedgers"])] == [[], []], status
    for pod in stack.ids():
        assert {one["severity"] for one in asked(stack, "explain", pod)["findings"]} <= {"note"}
    assert asked(stack, "under-replicated") == {"underReplicated": {}, "unrecoverable": []}
    ledger = asked(stack, "ledgers", "--limit", "1")[0]
    assert set(ledger["segments"][-1]["ensemble"]) <= set(stack.ids().values())
    assert str(ledger["ledgerId"]) in kubectl_quire(stack, "explain", str(ledger["ledgerId"]))
    topic = f"persistent://{manifests.PULSAR_NAMESPACE}/load-0"
    assert topic in kubectl_quire(stack, "explain", topic)
    assert "reader" in kubectl_quire(stack, "cursors", topic)
    bundle = tmp_path / "report.tar.gz"
    kubectl_quire(stack, "report", "--to", str(bundle))
    with tarfile.open(bundle) as files:
        names = files.getnames()
        problems = next(name for name in names if name.endswith("problems.txt"))
        said = files.extractfile(problems)
        assert said is not None and said.read() == b"none\n", names
        assert any("pool-bookie-0" in name for name in names if "persistentvolumeclaim" in name), names
        private = [pair["data"]["tls.key"] for pair in stack.cluster.items("v1", "Secret") if "tls.key" in pair["data"]]
        for name in names:
            content = files.extractfile(name)
            text = b"" if content is None else content.read()
            assert b"PRIVATE KEY" not in text and not any(key.encode() in text for key in private), name


def test_a_paused_pool_is_not_changed_until_it_is_resumed(stack: Stack) -> None:
    before = _runs(stack, BOOKIE_PODS)
    stack.change_pool(paused=True)
    until("it is paused", lambda: _reason(stack, "Reconciling") == "Paused", PUT_BACK_S)
    stack.change_pool(replicas=4, podTemplate={"metadata": {"annotations": {"quire.dev/e2e-paused": "never"}}})
    stack.cluster.merge(*BUDGET, {"spec": {"maxUnavailable": 2}})
    deadline_s = time.monotonic() + QUIET_S
    while time.monotonic() < deadline_s:
        assert (_runs(stack, BOOKIE_PODS), _budget(stack)) == (before, 2), "a paused pool was changed"
        time.sleep(1)
    stack.goes_on()
    stack.change_pool(
        replicas=stack.replicas, paused=None, podTemplate={"metadata": {"annotations": {"quire.dev/e2e-paused": None}}}
    )
    stack.wait_until_well(WELL_S)
    until("the budget is as it was", lambda: _budget(stack) == 1, PUT_BACK_S)
    assert _runs(stack, BOOKIE_PODS) == before, "a change reverted during the pause had an effect"
    stack.check()


def test_every_certificate_is_replaced_by_one_of_the_next_authority_without_a_restart(
    stack: Stack, measured: Measured
) -> None:
    before = {part: _runs(stack, part) for part in PARTS}
    start_s = time.monotonic()
    following = _announce_the_next_authority(stack)
    for secret, _ in PARTS.values():
        until(f"{secret} trusts it", lambda it=secret: _trusts(stack, it, following), TRUSTED_FIRST_S, poll_s=5.0)  # type: ignore[misc]
    measured("the next authority is trusted after", time.monotonic() - start_s)
    _bring_secrets(stack)
    # Auto-recovery checks its files every five minutes, without a setting: too rarely for this test.
    kubectl(stack.cluster, "rollout", "restart", f"deployment/{manifests.POOL}-autorecovery")
    for part, (secret, port) in PARTS.items():
        until(f"{secret} is of it", lambda it=secret: _is_signed_by(stack, it, following), WELL_S, poll_s=5.0)  # type: ignore[misc]
        _bring_secrets(stack)
        for pod in before[part]:
            until(f"{pod} serves it", lambda it=(pod, port, secret): _serves(stack, *it), WELL_S, poll_s=2.0)  # type: ignore[misc]
    measured("all pods serve with its certificates after", time.monotonic() - start_s)
    stack.goes_on()
    measured("longest pause of acknowledgements", stack.longest_pause_s())
    assert {part: _runs(stack, part) for part in PARTS} == before, "nothing was replaced or restarted"
    # A new connection must work with the new certificates alone.
    (broker,) = stack.cluster.pods(BROKER_PODS)
    nodes.signal_processes(broker["spec"]["nodeName"], broker["metadata"]["name"], "KILL")
    until("the broker was restarted", lambda: _runs(stack, BROKER_PODS) != before[BROKER_PODS], WELL_S)
    stack.wait_until_well(WELL_S)
    stack.goes_on()
    stack.check()


def test_deleted_resources_keep_their_data_and_new_ones_of_the_same_names_reuse_it(
    stack: Stack, measured: Measured
) -> None:
    stack.change_pool(storage={"reclaimPolicy": "Retain"})
    stack.wait_until_well(WELL_S)
    ids, volumes = stack.ids(), _volumes(stack)
    start_s = time.monotonic()
    stack.cluster.delete(manifests.API_VERSION, "Bookie", manifests.POOL)
    until("the namespace of topics holds it", lambda: _reason(stack, "Ready") == "DeletionHeld", PUT_BACK_S)
    stack.goes_on()
    stack.cluster.delete(manifests.API_VERSION, "ManagedLedger", manifests.LEDGER)
    until("both are gone", lambda: not (stack.pool() or _resource(stack, "ManagedLedger", manifests.LEDGER)), WELL_S)
    for part in PARTS:
        stack.wait_for_pods(part, 0, WELL_S)
    assert _volumes(stack) == volumes, "claims were deleted or replaced"
    stack.cluster.apply(manifests.bookie(stack.where, stack.replicas), manifests.managed_ledger(stack.where))
    stack.wait_until_well(WELL_S)
    stack.goes_on()
    measured("deleted, recreated and healthy after", time.monotonic() - start_s)
    measured("longest pause of acknowledgements", stack.longest_pause_s())
    assert (stack.ids(), _volumes(stack)) == (ids, volumes)
    stack.check_all()


def _announce_the_next_authority(stack: Stack) -> str:
    """Create the next authority as the operator does, dated a week less two minutes ago. Returns its certificate."""
    made_s = time.time() - TRUST_FIRST_S + TRUSTED_FIRST_S
    pair = issuing.new_authority("quire end to end", made_s, AUTHORITY_LIFE_S)
    encoded = {"next.crt": pair.certificate, "next.key": pair.key}
    data = {key: base64.b64encode(value).decode() for key, value in encoded.items()}
    stack.cluster.merge("v1", "Secret", AUTHORITY, {"data": data})
    return pair.certificate.decode().strip()


def _bring_secrets(stack: Stack) -> None:
    """Touch the pods: a kubelet updates Secrets within a minute and a half, but at once for a changed pod, and the
    operator reconciles its resource."""
    stamp = {"metadata": {"annotations": {"quire.dev/e2e-seen": str(time.time())}}}
    for part in (*PARTS, "app=load"):
        for pod in stack.cluster.pods(part):
            stack.cluster.merge("v1", "Pod", pod["metadata"]["name"], stamp)


def _pem(stack: Stack, secret: str, key: str) -> str:
    found = stack.cluster.get("v1", "Secret", secret)
    assert found is not None, f"Secret {secret} does not exist"
    return base64.b64decode(found["data"][key]).decode().strip()


def _trusts(stack: Stack, secret: str, authority: str) -> bool:
    _bring_secrets(stack)
    return authority in _pem(stack, secret, "ca.crt")


def _is_signed_by(stack: Stack, secret: str, authority: str) -> bool:
    _bring_secrets(stack)
    certificate = x509.load_pem_x509_certificate(_pem(stack, secret, "tls.crt").encode())
    return certificate.issuer == x509.load_pem_x509_certificate(authority.encode()).subject


def _serves(stack: Stack, pod: str, port: int, secret: str) -> bool:
    """Return whether a pod serves with the certificate in its Secret."""
    return kubectl(stack.cluster, "exec", pod, "--", "python", "-c", SHOW, str(port)).strip() == _pem(
        stack, secret, "tls.crt"
    )


def _runs(stack: Stack, part: str) -> dict[str, tuple[str, int]]:
    """Return each pod's uid and the restarts of its container."""
    return {
        pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for pod in stack.cluster.pods(part)
    }


def _volumes(stack: Stack) -> dict[str, str]:
    claims = stack.cluster.items("v1", "PersistentVolumeClaim", BOOKIE_PODS)
    return {claim["metadata"]["name"]: claim["spec"]["volumeName"] for claim in claims}


def _resource(stack: Stack, kind: str, name: str) -> Manifest | None:
    return stack.cluster.get(manifests.API_VERSION, kind, name)


def _reason(stack: Stack, kind: str) -> str:
    found = condition(stack.pool(), kind)
    return "" if found is None else str(found["reason"])


def _budget(stack: Stack) -> int | None:
    found = stack.cluster.get(*BUDGET)
    return None if found is None else int(found["spec"]["maxUnavailable"])


def _replicas(stack: Stack) -> int | None:
    found = stack.cluster.get(APPS, "StatefulSet", f"{manifests.POOL}-bookie")
    return None if found is None else int(found["spec"]["replicas"])
