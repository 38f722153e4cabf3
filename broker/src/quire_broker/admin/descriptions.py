"""What a handler reads of a request besides its path, and what it returns: declared beside the handler, for `openapi`.

A unit test compares the declarations with the query parameters and bodies that the sources of the handlers read.
Schemas are those of OpenAPI 3.0.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from quire_bookie.admin.answers import Handler
from quire_bookie.dataclass import dataclass

Schema: TypeAlias = Mapping[str, Any]
H = TypeVar("H", bound=Handler)
JSON: Final = "application/json"
PLAIN: Final = "text/plain"
BYTES: Final = "application/octet-stream"

TEXT: Final[Schema] = {"type": "string"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
INTEGER: Final[Schema] = {"type": "integer", "format": "int64"}
OBJECT: Final[Schema] = {"type": "object"}
NAMES: Final[Schema] = {"type": "array", "items": TEXT}
TEXTS: Final[Schema] = {"type": "object", "additionalProperties": TEXT}
GRANTS: Final[Schema] = {"type": "object", "additionalProperties": NAMES}


def fields(required: tuple[str, ...] = (), **schemas: Schema) -> Schema:
    """Return the schema of an object with these fields. It may have more."""
    found = {"type": "object", "properties": schemas}
    return found | ({"required": list(required)} if required else {})


MESSAGE_ID: Final = fields(("ledgerId", "entryId"), ledgerId=INTEGER, entryId=INTEGER)
POSITION: Final[Schema] = {"oneOf": [MESSAGE_ID, {"type": "string", "enum": ["earliest", "latest"]}]}


class Query(NamedTuple):
    """A parameter of the query."""

    name: str
    schema: Schema
    text: str


@dataclass(frozen=True, slots=True)
class Description:
    """What a handler reads and returns. `returns` None: not declared. `refuses`: it only answers 501 with a reason."""

    query: tuple[Query, ...] = ()
    body: Schema | None = None
    returns: Schema | None = None
    media: str = JSON
    """The type of the content that it returns."""
    refuses: bool = False


By: TypeAlias = Callable[[str], Description]
_DESCRIPTIONS: dict[Handler, By] = {}


def described(
    *query: Query, body: Schema | None = None, returns: Schema | None = None, media: str = JSON, refuses: bool = False
) -> Callable[[H], H]:
    """Declare what a handler reads and returns."""
    found = Description(query, body, returns, media, refuses)
    return described_by(lambda policy: found)


def described_by(by: By) -> Callable[[H], H]:
    """Declare it for each policy that may stand in the path; `by` receives the name of one."""

    def declare(handler: H) -> H:
        _DESCRIPTIONS[handler] = by
        return handler

    return declare


def description_of(handler: Handler, policy: str = "") -> Description:
    """Return the declaration; an empty one for a handler of another package."""
    by = _DESCRIPTIONS.get(handler)
    return Description() if by is None else by(policy)
