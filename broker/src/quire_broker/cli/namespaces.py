"""`quire namespace`: namespaces, their policies and permissions over the admin REST."""

import json
from typing import Annotated, Any

import typer

from quire_bookie.cli.commands import Commands, new_app
from quire_bookie.cli.confirmation import Yes, confirm_name
from quire_bookie.cli.output import say
from quire_bookie.cli.refusals import MissingError
from quire_bookie.cli.rest import DEFAULT_HTTP, Http, ask, get
from quire_bookie.cli.tables import Column, Output, OutputOption, print_one, print_rows
from quire_bookie.errors import ConfigError
from quire_broker.cli.admin_paths import namespace_of, namespace_path, quoted, tenant_path
from quire_broker.names import NamespaceName

Namespace = Annotated[str, typer.Argument(help="tenant/namespace")]
_HIDDEN = ("auth_policies", "bundles", "deleted", "migrated")
"""Policies that `describe` shows in another form, or that users do not need."""


def register(commands: Commands) -> None:
    """Add `quire namespace`."""
    app = new_app("Show, create and delete namespaces; set their policies and permissions.")
    commands.app.add_typer(app, name="namespace")
    _add_whole(app)
    _add_policies(app)


def _add_whole(app: typer.Typer) -> None:
    @app.command("list")
    def list_(
        tenant: Annotated[str, typer.Argument(help="Name of the tenant.")] = "public",
        http: Http = DEFAULT_HTTP,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """List the namespaces of a tenant; with -o wide the number of their topics, too."""
        tenant_path(tenant)
        names: list[str] = sorted(get(http, f"/admin/v2/namespaces/{quoted(tenant)}"))
        rows: list[dict[str, Any]] = [{"namespace": name} for name in names]
        if output is Output.WIDE:
            rows = [row | {"topics": len(_topics(http, row["namespace"]))} for row in rows]
        columns = [
            Column("namespace", lambda row: row["namespace"]),
            Column("topics", lambda row: row["topics"], wide=True),
        ]
        print_rows(rows, columns, output, name=lambda row: row["namespace"], empty=f"tenant {tenant} has no namespaces")

    @app.command()
    def describe(namespace: Namespace, http: Http = DEFAULT_HTTP, output: OutputOption = Output.TABLE) -> None:
        """Show a namespace: bundles, topics, permissions, and the policies that are set."""
        name = namespace_of(namespace)
        found = get(http, namespace_path(name))
        grants = found["auth_policies"]["namespace_auth"]
        facts: dict[str, object] = {
            "namespace": str(name),
            "topics": len(_topics(http, namespace)),
            "bundles": found["bundles"]["numBundles"],
            "permissions": "; ".join(f"{role}: {', '.join(sorted(held))}" for role, held in grants.items()) or None,
        }
        for policy, value in found.items():
            if policy not in _HIDDEN and value not in (None, {}, [], False, -1, "UNDEFINED", "None"):
                facts[policy] = value if isinstance(value, str | int) else json.dumps(value)
        print_one({"namespace": str(name), **found}, facts, output, name=name)

    @app.command()
    def create(
        namespace: Namespace,
        bundles: Annotated[int | None, typer.Option(min=1, help="Parts that move between brokers. [4]")] = None,
        http: Http = DEFAULT_HTTP,
    ) -> None:
        """Create a namespace."""
        name = namespace_of(namespace)
        ask(http, "PUT", namespace_path(name), None if bundles is None else {"bundles": {"numBundles": bundles}})
        say(f"namespace {name} is created")

    @app.command()
    def delete(
        namespace: Namespace,
        force: Annotated[bool, typer.Option("--force", help="Also delete its topics with all messages.")] = False,
        yes: Yes = False,
        http: Http = DEFAULT_HTTP,
    ) -> None:
        """Delete a namespace: an empty one, or with --force all its topics, too."""
        name = namespace_of(namespace)
        topics = len(_topics(http, namespace))
        confirm_name(yes, str(name), f"namespace {name} with {topics} topics will be deleted")
        ask(http, "DELETE", namespace_path(name) + ("?force=true" if force else ""))
        say(f"namespace {name} is deleted")


def _add_policies(app: typer.Typer) -> None:
    @app.command("set")
    def set_(
        namespace: Namespace,
        policies: Annotated[list[str], typer.Argument(metavar="POLICY=JSON...", help="E.g. messageTTL=3600.")],
        http: Http = DEFAULT_HTTP,
    ) -> None:
        """Set policies, e.g. retention='{"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}'."""
        name = namespace_of(namespace)
        parsed = [_policy(text) for text in policies]
        for policy, value in parsed:
            _change(http, "POST", name, policy, value)
            say(f"{policy} of {name} is set")

    @app.command()
    def unset(
        namespace: Namespace,
        policies: Annotated[list[str], typer.Argument(metavar="POLICY...", help="E.g. retention.")],
        http: Http = DEFAULT_HTTP,
    ) -> None:
        """Remove policies: the settings of the brokers hold again."""
        name = namespace_of(namespace)
        for policy in policies:
            _change(http, "DELETE", name, policy)
            say(f"{policy} of {name} is removed")

    @app.command()
    def grant(
        namespace: Namespace,
        role: Annotated[str, typer.Argument(help="Role that receives the permissions.")],
        actions: Annotated[list[str], typer.Argument(metavar="ACTION...", help="produce, consume.")],
        http: Http = DEFAULT_HTTP,
    ) -> None:
        """Allow a role to use the topics of a namespace; replaces what it was allowed before."""
        name = namespace_of(namespace)
        ask(http, "POST", f"{namespace_path(name)}/permissions/{quoted(role)}", actions)
        say(f"{role} may {' and '.join(actions)} in {name}")

    @app.command()
    def revoke(
        namespace: Namespace,
        role: Annotated[str, typer.Argument(help="Role that loses its permissions.")],
        http: Http = DEFAULT_HTTP,
    ) -> None:
        """Withdraw all permissions of a role in a namespace."""
        name = namespace_of(namespace)
        ask(http, "DELETE", f"{namespace_path(name)}/permissions/{quoted(role)}")
        say(f"{role} has no permissions in {name}")


def _topics(http: str, namespace: str) -> list[str]:
    found: list[str] = get(http, f"{namespace_path(namespace_of(namespace))}/topics")
    return found


def _change(http: str, method: str, name: NamespaceName, policy: str, value: Any = None) -> None:
    """Send a policy; MissingError names the policy or the namespace that the broker does not have."""
    try:
        ask(http, method, f"{namespace_path(name)}/{quoted(policy)}", value)
    except MissingError as error:
        if str(error) == "Not Found":  # of the router; a route names the missing object
            raise MissingError(
                f"policy {policy}: this broker has none of that name, see docs/compatibility.md"
            ) from error
        raise


def _policy(text: str) -> tuple[str, Any]:
    """Parse POLICY=JSON; a value that is not JSON is a text. ConfigError."""
    policy, separator, value = text.partition("=")
    if not separator or not policy or not value:
        raise ConfigError(f"{text}: expected POLICY=JSON, e.g. messageTTL=3600")
    try:
        return policy, json.loads(value)
    except ValueError as error:
        if value[0] in "{[":
            raise ConfigError(f"{policy}: {value} is not JSON: {error}") from error
        return policy, value
