"""HTTP requests for a route table: paths with odd parts, queries, nearly valid and invalid bodies, headers.

Routes come from the table of the server, and the names in bodies and queries from the sources that read them, so that a
new route or field is covered without an entry here. An entry in SAMPLES gets a route past its first check.
"""

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote, quote_from_bytes

from hypothesis import strategies as st

from quire_bookie import admin as bookie_admin
from quire_broker import admin as broker_admin
from quire_broker import offload, ownership
from quire_broker.admin.namespaces import STORED_POLICIES
from quire_broker.policies.unserved import UNSERVED
from tests.fuzz.values import as_text, changed, deep_texts, json_values, odd_numbers, odd_texts

_AVRO = '{"type":"record","name":"R","fields":[{"name":"a","type":["null","string"],"default":null}]}'
_MESSAGE_ID = {"ledgerId": 1, "entryId": 0, "partitionIndex": -1}
_QUOTA = {"msgRateIn": 1, "msgRateOut": 2, "bandwidthIn": 3, "bandwidthOut": 4, "memory": 5, "dynamic": True}
SAMPLES: dict[str, Sequence[Any]] = {
    "tenants/{tenant}": ({"adminRoles": ["r"], "allowedClusters": ["standalone"]},),
    "clusters/{cluster}": ({"serviceUrl": "http://a:80", "brokerServiceUrl": "pulsar://a:6650"},),
    "namespaceIsolationPolicies/{policy}": (
        {
            "namespaces": ["fuzz/.*"],
            "primary": ["127.*"],
            "secondary": ["(a+)+"],
            "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1"}},
        },
    ),
    "{tenant}/{namespace}": ({"bundles": {"numBundles": 4}, "replication_clusters": ["standalone"]}, {}),
    "{role}": (["produce", "consume"],),
    "{subscription}": (_MESSAGE_ID, "earliest", "latest", ["r"]),
    "backlogQuota": ({"limitSize": 1000, "limitTime": 1, "policy": "producer_request_hold"},),
    "offloadPolicies": ({"managedLedgerOffloadDriver": "filesystem", "fileSystemURI": "file:///tmp/none"},),
    "{namespace}/{policy}": (
        {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1},
        {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1},
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2},
        *(60, True, "FULL", ["standalone"], {"deleteWhileInactive": True}, {"active": True, "tickTime": 1}),
        {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1},
        {"dispatchThrottlingRateInMsg": 5, "ratePeriodInSecond": 1, "relativeToPublishRate": True},
        {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 30},
    ),
    "{subscription}/dispatchRate": ({"dispatchThrottlingRateInByte": 5, "ratePeriodInSecond": 1},),
    "schema": ({"type": "AVRO", "schema": _AVRO, "properties": {}}, {"type": "STRING", "schema": "", "properties": {}}),
    "compatibility": ({"type": "AVRO", "schema": _AVRO, "properties": {}},),
    "version": ({"type": "JSON", "schema": _AVRO, "properties": {}},),
    "partitions": (2, 1),
    "resetcursor": (_MESSAGE_ID,),
    "offload": (_MESSAGE_ID,),
    "begin": ({"ledgerId": 1, "driver": "filesystem", "properties": {"a": "b"}},),
    "complete": ({"ledgerId": 1, "uuid": "00000000-0000-0000-0000-000000000001", "entries": 1, "size": 1},),
    "abort": ({"ledgerId": 1, "uuid": "00000000-0000-0000-0000-000000000001"},),
    "admins": (["keeper"],),
    "racks-info/{bookie}": ({"rack": "/zone/r1", "hostname": "b1"},),
    "resourcegroups/{group}": ({"publishRateInMsgs": 5, "dispatchRateInBytes": 1000},),
    "bookieAffinity": ({"bookkeeperAffinityGroupPrimary": "default", "bookkeeperAffinityGroupSecondary": "g2"},),
    "resource-quotas": (_QUOTA,),
    "{namespace}/{bundle}": (_QUOTA,),
    "peers": (["c2"], []),
    "migrate": ({"serviceUrl": "http://h:1", "brokerServiceUrl": "pulsar://h:2"},),
    "migration": (False, True),
    "antiAffinity": ("shop",),
    "decommission": ({"bookie_src": "a:3181"},),
    "lost_bookie_recovery_delay": ({"delay_seconds": "10"},),
    "status": ({"enabled": True},),
    "drains/{bookie}": ({"wish": "decommission"}, {"wish": "drain"}),
    "accept": ({"ledger": 1},),
    "gc": ({"forceMajor": True, "forceMinor": True},),
    "fuse": ({"reset": True},),
    "hold": ({"hold": True, "seconds": 1},),
    "undelete": ({"ledgers": [1, 2], "seconds": 60},),
    "readonly": ({"readOnly": False}, {"readOnly": True}),
    "end": ({"ledgers": [1]}, {"run": "x"}),
}
"""Valid or nearly valid bodies by the end of a route's pattern."""
_IDS = ("0", "1", "2", "5", "-1", "1000000", "9223372036854775807", "9223372036854775808", "-9223372036854775809")
PARTS: dict[str, Sequence[str]] = {
    "domain": ("persistent", "persistent", "persistent", "non-persistent"),
    "tenant": ("fuzz", "fuzz", "fuzz", "fuzz", "new"),
    "namespace": ("ns", "ns", "ns", "new"),
    "topic": ("t", "t", "p", "p-partition-0", "p-partition-7", "new"),
    "subscription": ("s", "s", "new"),
    "policy": (*STORED_POLICIES, *UNSERVED, "offloadThreshold", "offloadDeletionLagMs", "one"),
    "bundle": ("0x00000000_0x40000000", "0x00000000_0xffffffff", "0x0_0x0"),
    "ledger": _IDS,
    "time_ms": _IDS,
    "count": _IDS,
    "version": _IDS,
    "bookie": ("127.0.0.1:1", "a:3181"),
    "cluster": ("c1", "new"),
    "role": ("r",),
    "group": ("g1", "new"),
    "api": ("v2", "v3"),
    "part": ("functions", "packages"),
    "broker": ("127.0.0.1:1",),
    "name": ("brokerShutdownTimeoutMs", "maxPublishRatePerTopicInMessages", "new"),
    "value": _IDS,
}
"""Valid values by the name of a part of a pattern."""
_TYPES = (
    "text/plain",
    "application/json; charset=latin-1",
    "application/json; charset=x",
    "",
    "multipart/form-data",
    ";",
)
_QUERIES = re.compile(r'(?:flag|integer)\(request, "(\w+)"|query(?:\.get\(|\[)"(\w+)"')


def _sources() -> list[str]:
    packages: tuple[ModuleType, ...] = (bookie_admin, broker_admin, offload, ownership)
    return [path.read_text() for package in packages for path in Path(package.__path__[0]).glob("*.py")]


@cache
def names() -> tuple[str, ...]:
    """Return the strings of the sources that look like names of fields."""
    found = {
        node.value
        for source in _sources()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return tuple(sorted(name for name in found if re.fullmatch("[A-Za-z_]{3,40}", name)))


@cache
def queries() -> tuple[str, ...]:
    """Return the names of query parameters that handlers read."""
    found = {one or two for source in _sources() for one, two in _QUERIES.findall(source)}
    assert len(found) > 10, "the handlers read their queries in a different way now"
    return tuple(sorted(found))


def _samples(pattern: str) -> Sequence[Any]:
    ends = [end for end in SAMPLES if pattern.endswith(end)]
    return SAMPLES[max(ends, key=len)] if ends else ({},)


@st.composite
def _paths(draw: st.DrawFn, pattern: str, *, odd: bool) -> str:
    parts = []
    for part in pattern.split("/"):
        if not part.startswith("{"):
            parts.append(part)
        elif odd and not draw(st.integers(0, 2)):
            text = draw(odd_texts)
            parts.append(draw(st.sampled_from((quote(text, safe=""), quote(text), "%ED%A0%80", "%FF", "%00"))))
        else:
            parts.append(draw(st.sampled_from(PARTS.get(part[1:-1], ("x", "1")))))
    path = "/".join(parts)
    if draw(st.booleans()):
        asked = draw(st.lists(st.tuples(st.sampled_from(queries()) | odd_texts, _query_values), max_size=3))
        path += "?" + "&".join(f"{quote(name)}={quote(value)}" for name, value in asked)
    return path


_query_values = st.sampled_from(("true", "false", "")) | odd_numbers.map(str) | odd_texts


@st.composite
def bodies(draw: st.DrawFn, pattern: str) -> bytes:
    """Return a body for a route: valid, nearly valid, any JSON, deep JSON, or no JSON."""
    values = json_values(st.sampled_from(names()))
    kind = draw(st.sampled_from(("near", "near", "near", "near", "json", "json", "deep", "bytes", "empty")))
    if kind == "near":
        return as_text(draw(changed(draw(st.sampled_from(_samples(pattern))), values))).encode()
    if kind == "json":
        return as_text(draw(values)).encode()
    if kind == "deep":
        return draw(deep_texts).encode()
    return draw(st.binary(max_size=40)) if kind == "bytes" else b""


@st.composite
def requests(draw: st.DrawFn, routes: Sequence[str]) -> bytes:
    """Return the bytes of one request to one of these routes, each `METHOD /pattern`."""
    method, _, pattern = draw(st.sampled_from(routes)).partition(" ")
    path = draw(_paths(pattern, odd=not draw(st.integers(0, 2))))
    if not draw(st.integers(0, 30)):
        method = draw(st.sampled_from(("GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "X")))
    body = draw(bodies(pattern)) if method in ("PUT", "POST", "DELETE") or not draw(st.integers(0, 9)) else b""
    usual = draw(st.integers(0, 9))
    content_type = "application/json" if usual else draw(st.sampled_from(_TYPES))
    headers = [f"Host: localhost\r\nConnection: close\r\nContent-Length: {len(body)}"]
    if content_type:
        headers.append(f"Content-Type: {content_type}")
    if not draw(st.integers(0, 15)):
        headers.append(f"Content-Encoding: {draw(st.sampled_from(('gzip', 'deflate', 'br', 'x')))}")
    if not draw(st.integers(0, 15)):
        value = quote_from_bytes(draw(odd_texts).encode("utf-8", "replace"))
        headers.append(
            f"{draw(st.sampled_from(('Authorization', 'X-Pulsar-ListenerName', 'Accept', 'Range')))}: {value}"
        )
    return (
        f"{method} {path} HTTP/1.1\r\n".encode("ascii", "replace") + "\r\n".join(headers).encode() + b"\r\n\r\n" + body
    )
