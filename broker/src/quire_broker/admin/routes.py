"""Routes of the admin API, each with the permission that it requires, as in stock Pulsar.

`quire_bookie.admin.routes` has the table that holds them.

probes, metrics   every client: they contain names and counts, no message
a topic           lookup, stats and partitions: roles that produce or consume; subscriptions and last message:
                  roles that consume; publishing: roles that produce; everything else: admins
                  of the namespace
schemas           reads: roles that produce or consume; changes over REST: admins of the namespace
a namespace       its topics: roles that consume; creation, deletion and the list of its admins: admins of the
                  tenant; its offload target: super users, because brokers write there with their own
                  credentials; everything else: its admins
everything else   super users; admins of a tenant see its namespaces, every role sees the names of clusters
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from aiohttp import web

from quire_bookie.admin.answers import Handler


class Need(Enum):
    """The right that a request requires of its role."""

    NOTHING = auto()
    A_ROLE = auto()
    LOOK_UP = auto()
    PRODUCE = auto()
    CONSUME = auto()
    LIST = auto()
    NAMESPACE = auto()
    TENANT = auto()
    SUPER_USER = auto()


class Reach(Enum):
    """The clients that a broker without authentication answers; it cannot tell one from another."""

    LOCAL = auto()
    """Processes of this machine, unless httpServerAdminRemote opens the port."""
    CLIENTS = auto()
    """Every machine: what stock clients with an http:// service URL look up."""
    SOCKETS = auto()
    """Every machine, and the token may be in the query: WebSockets. Browsers only under a permitted name."""
    PROBE = auto()
    """Every machine, under any name of this broker."""


class Route(NamedTuple):
    """A path with its handler and its permission."""

    method: str
    path: str
    handler: Handler
    need: Need
    reach: Reach = Reach.LOCAL


BUNDLE: Final = "{bundle:0x[0-9a-fA-F]+_0x[0-9a-fA-F]+}"
"""Part of a path that is the range of a bundle."""
ORIGINAL: Final = "X-Original-Principal"
"""Header in which a proxy names its client."""
READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""The methods of requests that change nothing."""
ROUTES: Final = web.AppKey("quire.routes", Mapping[web.AbstractRoute, Route])
