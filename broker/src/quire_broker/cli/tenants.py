"""`quire tenant`: tenants and their admins over the admin REST."""

from typing import Annotated, Any

import typer

from quire_bookie.cli.commands import Commands, new_app
from quire_bookie.cli.confirmation import Yes, confirm_name
from quire_bookie.cli.output import say
from quire_bookie.cli.rest import DEFAULT_HTTP, Http, ask, get
from quire_bookie.cli.tables import Column, Output, OutputOption, print_one, print_rows
from quire_broker.cli.admin_paths import quoted, tenant_path

Tenant = Annotated[str, typer.Argument(help="Name of the tenant.")]
Admins = Annotated[list[str] | None, typer.Option("--admin", help="Role that administers it. May be repeated.")]
Clusters = Annotated[
    list[str] | None, typer.Option("--cluster", help="Cluster that it may use. May be repeated. [all known]")
]


def register(commands: Commands) -> None:
    """Add `quire tenant`."""
    app = new_app("Show, create and delete tenants, which own namespaces.")
    commands.app.add_typer(app, name="tenant")

    @app.command("list")
    def list_(http: Http = DEFAULT_HTTP, output: OutputOption = Output.TABLE) -> None:
        """List the tenants; with -o wide their admins and clusters, too."""
        names: list[str] = sorted(get(http, "/admin/v2/tenants"))
        rows: list[dict[str, Any]] = [{"tenant": name} for name in names]
        if output is not Output.NAME and output is not Output.TABLE:
            rows = [{"tenant": name, **get(http, tenant_path(name))} for name in names]
        columns = [
            Column("tenant", lambda row: row["tenant"]),
            Column("admins", lambda row: ", ".join(row["adminRoles"]) or None, wide=True),
            Column("clusters", lambda row: ", ".join(row["allowedClusters"]), wide=True),
        ]
        print_rows(rows, columns, output, name=lambda row: row["tenant"], empty="there are no tenants")

    @app.command()
    def describe(tenant: Tenant, http: Http = DEFAULT_HTTP, output: OutputOption = Output.TABLE) -> None:
        """Show a tenant: admins, clusters and namespaces."""
        found = get(http, tenant_path(tenant))
        namespaces = get(http, f"/admin/v2/namespaces/{quoted(tenant)}")
        facts = {
            "tenant": tenant,
            "admins": ", ".join(found["adminRoles"]) or None,
            "clusters": ", ".join(found["allowedClusters"]),
            "namespaces": ", ".join(namespaces) or None,
        }
        print_one({"tenant": tenant, **found, "namespaces": namespaces}, facts, output, name=tenant)

    @app.command()
    def create(tenant: Tenant, admins: Admins = None, clusters: Clusters = None, http: Http = DEFAULT_HTTP) -> None:
        """Create a tenant."""
        allowed = clusters or get(http, "/admin/v2/clusters")
        ask(http, "PUT", tenant_path(tenant), {"adminRoles": admins or [], "allowedClusters": allowed})
        say(f"tenant {tenant} is created")

    @app.command("set")
    def set_(tenant: Tenant, admins: Admins = None, clusters: Clusters = None, http: Http = DEFAULT_HTTP) -> None:
        """Replace the admins or the clusters of a tenant; an omitted list stays."""
        found = get(http, tenant_path(tenant))
        body = {
            "adminRoles": found["adminRoles"] if admins is None else admins,
            "allowedClusters": found["allowedClusters"] if clusters is None else clusters,
        }
        ask(http, "POST", tenant_path(tenant), body)
        say(f"tenant {tenant} is changed")

    @app.command()
    def delete(tenant: Tenant, yes: Yes = False, http: Http = DEFAULT_HTTP) -> None:
        """Delete a tenant that has no namespaces."""
        get(http, tenant_path(tenant))
        confirm_name(yes, tenant, f"tenant {tenant} will be deleted")
        ask(http, "DELETE", tenant_path(tenant))
        say(f"tenant {tenant} is deleted")
