"""What people do to resources: hands on children, a pause, other certificates, a deletion. Under load."""

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
"""So long a paused operator is watched doing nothing: several passes."""
TRUSTED_FIRST_S = 120.0
"""From the next authority's first day in `ca.crt` to the first certificate of it: a week elsewhere. The operator keeps
what it read for one minute, and the pods get Secrets at once, since they are touched."""
PARTS = {BOOKIE_PODS: (f"{manifests.POOL}-bookie-tls", 8000), BROKER_PODS: (manifests.BROKER_CERTIFICATE, 8443)}
"""Pods: the Secret that they serve with, and a port where that is seen."""
SHOW = "import ssl, sys; print(ssl.get_server_certificate(('127.0.0.1', int(sys.argv[1]))))"
BUDGET = ("policy/v1", "PodDisruptionBudget", f"{manifests.POOL}-bookie")
SETTINGS = ("v1", "ConfigMap", f"{manifests.POOL}-bookie")


@pytest.mark.e2e_short
def test_what_was_changed_by_hand_is_put_back(stack: Stack, measured: Measured) -> None:
    before = stack.ids()
    start_s = time.monotonic()
    stack.cluster.merge(*BUDGET, {"spec": {"maxUnavailable": 3}})
    stack.cluster.delete(*SETTINGS)
    kubectl(stack.cluster, "scale", f"statefulset/{manifests.POOL}-bookie", "--replicas=2")
    until("the settings are there again", lambda: stack.cluster.get(*SETTINGS), PUT_BACK_S)
    until("the budget is as it was", lambda: _budget(stack) in (0, 1), PUT_BACK_S)
    until("three replicas are wanted", lambda: _replicas(stack) == stack.replicas, PUT_BACK_S)
    measured("put back after", time.monotonic() - start_s)
    stack.wait_until_well(WELL_S)
    assert stack.ids() == before
    stack.goes_on()
    stack.judge()


def test_kubectl_quire_tells_how_everything_is(stack: Stack, tmp_path: Path) -> None:
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


def test_a_paused_pool_is_left_as_it_is_until_it_goes_on(stack: Stack) -> None:
    before = _runs(stack, BOOKIE_PODS)
    stack.change_pool(paused=True)
    until("it is paused", lambda: _reason(stack, "Progressing") == "Paused", PUT_BACK_S)
    stack.change_pool(replicas=4, podTemplate={"metadata": {"annotations": {"quire.dev/e2e-paused": "never"}}})
    stack.cluster.merge(*BUDGET, {"spec": {"maxUnavailable": 2}})
    deadline_s = time.monotonic() + QUIET_S
    while time.monotonic() < deadline_s:
        assert (_runs(stack, BOOKIE_PODS), _budget(stack)) == (before, 2), "nothing is done, nothing is put back"
        time.sleep(1)
    stack.goes_on()
    stack.change_pool(
        replicas=stack.replicas, paused=None, podTemplate={"metadata": {"annotations": {"quire.dev/e2e-paused": None}}}
    )
    stack.wait_until_well(WELL_S)
    until("the budget is as it was", lambda: _budget(stack) == 1, PUT_BACK_S)
    assert _runs(stack, BOOKIE_PODS) == before, "what was taken back in between never was"
    stack.judge()


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
    # Auto-recovery looks at its files every five minutes, and has no setting for it: too seldom for this hurry.
    kubectl(stack.cluster, "rollout", "restart", f"deployment/{manifests.POOL}-autorecovery")
    for part, (secret, port) in PARTS.items():
        until(f"{secret} is of it", lambda it=secret: _is_signed_by(stack, it, following), WELL_S, poll_s=5.0)  # type: ignore[misc]
        _bring_secrets(stack)
        for pod in before[part]:
            until(f"{pod} serves it", lambda it=(pod, port, secret): _serves(stack, *it), WELL_S, poll_s=2.0)  # type: ignore[misc]
    measured("everybody serves with its certificates after", time.monotonic() - start_s)
    stack.goes_on()
    measured("longest pause of acknowledgements", stack.longest_pause_s())
    assert {part: _runs(stack, part) for part in PARTS} == before, "nothing was replaced or restarted"
    # Whoever connects anew meets the new ones alone.
    (broker,) = stack.cluster.pods(BROKER_PODS)
    nodes.signal_processes(broker["spec"]["nodeName"], broker["metadata"]["name"], "KILL")
    until("the broker was started anew", lambda: _runs(stack, BROKER_PODS) != before[BROKER_PODS], WELL_S)
    stack.wait_until_well(WELL_S)
    stack.goes_on()
    stack.judge()


def test_what_is_deleted_keeps_its_data_and_new_resources_of_the_names_take_it_up(
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
    assert _volumes(stack) == volumes, "claims stay, with what is on them"
    stack.cluster.apply(manifests.bookie(stack.where, stack.replicas), manifests.managed_ledger(stack.where))
    stack.wait_until_well(WELL_S)
    stack.goes_on()
    measured("deleted, made again and well after", time.monotonic() - start_s)
    measured("longest pause of acknowledgements", stack.longest_pause_s())
    assert (stack.ids(), _volumes(stack)) == (ids, volumes)
    stack.judge_all()


def _announce_the_next_authority(stack: Stack) -> str:
    """As the operator makes it, but a week ago less two minutes. Its certificate."""
    made_s = time.time() - TRUST_FIRST_S + TRUSTED_FIRST_S
    pair = issuing.new_authority("quire end to end", made_s, AUTHORITY_LIFE_S)
    encoded = {"next.crt": pair.certificate, "next.key": pair.key}
    data = {key: base64.b64encode(value).decode() for key, value in encoded.items()}
    stack.cluster.merge("v1", "Secret", AUTHORITY, {"data": data})
    return pair.certificate.decode().strip()


def _bring_secrets(stack: Stack) -> None:
    """A kubelet brings changed Secrets within a minute and a half, and at once to a pod that changes; the operator
    looks at the resource of such a pod."""
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
    """With the certificate that is in its Secret."""
    return kubectl(stack.cluster, "exec", pod, "--", "python", "-c", SHOW, str(port)).strip() == _pem(
        stack, secret, "tls.crt"
    )


def _runs(stack: Stack, part: str) -> dict[str, tuple[str, int]]:
    """Of each pod: which one it is, and how often its container was started anew."""
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
