"""Merges a user's pod template over a generated one, like `kubectl patch`: a subset of strategic merge patch. Pure.

Maps are merged key by key; null removes a key. Lists whose items have a key (containers by name, mounts by path) are
merged item by item, with new items at the end; other lists are replaced. `$patch: delete` removes an item, and
`$patch: replace` replaces a generated map or item. Unknown fields are kept.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_DIRECTIVE = "$patch"
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resizePolicy": "resourceName",
    "schedulingGates": "name",
}
"""The field that identifies the items of a list in a PodSpec."""


def merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch merged over the base; neither is changed."""
    if patch.get(_DIRECTIVE) == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    found = dict(base)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping):
            former = found.get(key)
            found[key] = merged(former if isinstance(former, Mapping) else {}, value)
        elif _is_keyed(key, value) and isinstance(found.get(key), list):
            found[key] = _merged_list(found[key], value, _KEYS[key])
        elif _is_keyed(key, value):
            found[key] = _merged_list([], value, _KEYS[key])
        else:
            found[key] = value
    return found


def _is_keyed(name: str, value: object) -> bool:
    """Return whether a list is merged by key; one with an item that lacks the key is replaced as a whole."""
    return name in _KEYS and isinstance(value, list) and all(isinstance(i, Mapping) and _KEYS[name] in i for i in value)


def _merged_list(base: Sequence[Any], patch: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    found = list(base)
    for item in patch:
        places = [place for place, known in enumerate(found) if known.get(key) == item[key]]
        if item.get(_DIRECTIVE) == "delete":
            found = [known for place, known in enumerate(found) if place not in places]
        elif places:
            found[places[0]] = merged(found[places[0]], item)
        else:
            found.append(merged({}, item))
    return found
