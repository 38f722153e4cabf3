"""Parts that both resources have: the metadata store, resources, pod templates, TLS. Shapes and defaults only."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from quire_operator.api.fields import AnyObject, ApiModel, Label, Name, Resource, Rule, part

HOST_PORT_PATTERN = r"^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?:[0-9]{1,5}$"
SETTING_PATTERN = r"^[A-Za-z][A-Za-z0-9_]*$"
SETTINGS_MAX = 128

Endpoint = Annotated[str, StringConstraints(pattern=HOST_PORT_PATTERN, max_length=260)]
SettingValue = Annotated[str, StringConstraints(max_length=1024)]
Image = Annotated[str, StringConstraints(min_length=1, max_length=512)]

IMAGE_HELP = "Container image. Default: the one that came with the operator."
RESOURCES_HELP = "cpu and memory of each pod. Memory below the caches and 170 MiB more makes no sense."
TEMPLATE_HELP = (
    "Pod template that is merged over the generated one, lists of containers, volumes and variables by name, as "
    "`kubectl patch` does it. The main container is `quire`. Rights over the node, user 0 and other ServiceAccounts "
    "are refused, unless the operator runs with --pod-templates any."
)
SETTINGS_HELP = (
    "Settings by their keys in docs/configuration.md, for what has no field here. Keys that the operator sets itself "
    "are refused."
)


class SecretRef(ApiModel):
    """A Secret of the same namespace."""

    secret_name: Name = Field(description="Name of the Secret.")


class MetadataTls(SecretRef):
    """TLS towards etcd."""

    client_certificate: bool = Field(
        True, description="The Secret has tls.crt and tls.key too, and etcd is shown them. Off: it has ca.crt only."
    )


class MetadataStore(ApiModel):
    """Where the cluster's metadata is. All resources with the same endpoints are one cluster."""

    endpoints: tuple[Endpoint, ...] = Field(
        min_length=1,
        max_length=9,
        description="etcd members as host:port. All resources with the same are one cluster; a Service's short name "
        "is that of its own namespace.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    tls: MetadataTls | None = Field(None, description="Secret with ca.crt, tls.crt and tls.key. Default: in clear.")
    auth: SecretRef | None = Field(None, description="Secret with username and password of a user of etcd.")


class Resources(ApiModel):
    """Resource requests and limits of a container."""

    requests: dict[Label, Resource] = Field(
        default_factory=dict, max_length=16, description="What is set aside on the node."
    )
    limits: dict[Label, Resource] = Field(default_factory=dict, max_length=16, description="What it never exceeds.")


class PodTemplateMetadata(ApiModel):
    """Labels and annotations that are added to the pods."""

    labels: dict[Label, Label] = Field(default_factory=dict, max_length=64, description="Added; ours stay.")
    annotations: dict[Label, SettingValue] = Field(default_factory=dict, max_length=64, description="Added.")


class PodTemplate(ApiModel):
    """What a user wants otherwise in the pods; fields that this version does not know are kept and passed on."""

    metadata: PodTemplateMetadata = part(PodTemplateMetadata, "Labels and annotations of the pods.")
    spec: AnyObject = Field(default_factory=dict, description="A PodSpec; only what should differ.")


class TlsMode(StrEnum):
    """Whether clients may speak in clear."""

    DISABLED = "Disabled"
    OFFERED = "Offered"
    REQUIRED = "Required"


class Tls(ApiModel):
    """TLS of the ports that clients use, and of the HTTP port."""

    RULES = (
        Rule(
            "!has(self.authorizedRoles) || size(self.authorizedRoles) == 0 || self.clientAuthentication",
            "authorizedRoles are taken from client certificates: set clientAuthentication",
            ".authorizedRoles",
        ),
    )

    secret_name: Name | None = Field(
        None,
        description="Secret with tls.crt, tls.key and ca.crt, as cert-manager makes it. Default: one that the operator "
        "makes, where it runs with --tls generated.",
    )
    mode: TlsMode = Field(
        TlsMode.REQUIRED, description="Disabled: no TLS. Offered: clients choose. Required: nothing in clear."
    )
    client_authentication: bool = Field(
        False,
        description="Only clients with a certificate that ca.crt vouches for, on the BookKeeper port of bookies. HTTP "
        "ports ask nobody for one; brokers do not ask yet (condition NotYetServed).",
    )
    authorized_roles: tuple[Label, ...] = Field(
        (),
        max_length=64,
        description="Roles (OU of the certificate) that may connect to the BookKeeper port of bookies. Empty: every "
        "trusted one. Brokers have no use for it yet.",
    )


def effective_tls(wanted: Tls | None, generated: str | None) -> Tls | None:
    """What is served: the wish with the Secret that counts, `generated` where it names none. None: everything in clear.

    A wish without any Secret stays as it is: `plan.spec_checks` says so.
    """
    if wanted is not None and wanted.mode is TlsMode.DISABLED:
        return None
    if wanted is None:
        return None if generated is None else Tls.model_validate({"secretName": generated})
    return wanted if wanted.secret_name is not None else wanted.model_copy(update={"secret_name": generated})


class TokenKeyType(StrEnum):
    """The kind of key that checks tokens."""

    SECRET = "Secret"
    PUBLIC = "Public"


Algorithm = Annotated[str, StringConstraints(pattern=r"^(RS|PS|ES)(256|384|512)$", max_length=5)]
KEY_TYPE_HELP = "Secret: token.key signs and checks tokens. Public: it checks them."
ALGORITHM_HELP = "Signature algorithm of a public key."


class Monitoring(ApiModel):
    """Scraping by Prometheus; has no effect where its operator's API is not installed."""

    enabled: bool = Field(True, description="Make a PodMonitor.")
    interval: Annotated[str, StringConstraints(pattern=r"^[0-9]+(s|m)$", max_length=16)] = Field(
        "30s", description="Pause between two scrapes."
    )
    labels: dict[Label, Label] = Field(
        default_factory=dict, max_length=32, description="Labels of the PodMonitor, for Prometheus' selector."
    )


class Metadata(ApiModel):
    """What the operator reads of an object's metadata."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 1
    resource_version: str = ""
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
