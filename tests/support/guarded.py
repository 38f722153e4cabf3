"""A `quire standalone` process that asks for tokens and looks at what roles may do."""

import itertools
import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import jwt
import pytest

from tests.support.standalone import StandaloneProcess

SECRET = b"a secret of tests that is long enough for HS256"
_names = itertools.count()


def token(role: str) -> str:
    """Return a token of a role."""
    return jwt.encode({"sub": role}, SECRET, algorithm="HS256")


class Guarded:
    """The process. `root` is its super user."""

    def __init__(self, folder: Path) -> None:
        key = folder / "secret.key"
        key.write_bytes(SECRET)
        settings = {
            "authenticationEnabled": "true",
            "authenticationProviders": "token",
            "tokenSecretKey": f"file://{key}",
            "authorizationEnabled": "true",
            "superUserRoles": "root",
            "permissionsCheckSeconds": 1,
        }
        self.process = StandaloneProcess(folder, settings=tuple(f"{name}={value}" for name, value in settings.items()))
        self.process.start()

    def rest(self, method: str, path: str, body: Any = None, *, role: str = "root") -> Any:
        """One REST call; HTTPError for codes from 400 on."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token(role)}"}
        with urlopen(Request(self.process.http + path, data, headers, method=method), timeout=30) as answer:
            text = answer.read().decode()
        return json.loads(text) if text else None

    def refused(self, method: str, path: str, body: Any = None, *, role: str) -> int:
        """The code of a refusal."""
        with pytest.raises(HTTPError) as error:
            self.rest(method, path, body, role=role)
        return error.value.code

    def namespace(self, **granted: list[str]) -> str:
        """A namespace of its own, where these roles may do something."""
        name = f"public/n{next(_names)}"
        self.rest("PUT", f"/admin/v2/namespaces/{name}")
        for role, actions in granted.items():
            self.rest("POST", f"/admin/v2/namespaces/{name}/permissions/{role}", actions)
        return name
