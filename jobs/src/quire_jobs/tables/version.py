"""One state of a table, for readers that need its rows and its marks to be of the same commit."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Version:
    """`name`: for `Table.files`; empty if the table does not exist or is empty. `schema`: None without a table."""

    name: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)
    schema: pa.Schema | None = None
