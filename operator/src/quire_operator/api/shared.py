"""Parts of several specs: the metadata store, resources, pod templates, Services, TLS. Models and defaults only."""

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

IMAGE_HELP = "Container image. Default: the image that the operator was installed with."
RESOURCES_HELP = (
    "CPU and memory of each pod. Default: requests for the caches and the process, and twice that as the limit of "
    "memory; none for a resource that you name. Caches and workers without a value follow from limits that you name."
)
TEMPLATE_HELP = (
    "Pod template that is merged over the generated one with the semantics of `kubectl patch`: lists of containers, "
    "volumes and variables by name. The main container is `quire`. Privileges on the node, user 0 and other "
    "ServiceAccounts are refused, unless the operator runs with --pod-templates any."
)
PRIORITY_HELP = (
    "PriorityClass of the pods, which must exist: the chart creates quire-storage and quire-broker with "
    "priorityClasses.create. Default: that of the cluster."
)
DERIVED_HELP = "Settings that follow from the limits in resources, because the spec has no value for them."
SETTINGS_HELP = (
    "Settings without a field here, by their keys in docs/configuration.md. Keys that the operator sets itself are "
    "refused."
)


class SecretRef(ApiModel):
    """A Secret of the same namespace."""

    secret_name: Name = Field(description="Name of the Secret.")


class MetadataTls(SecretRef):
    """TLS of connections to etcd."""

    client_certificate: bool = Field(
        True,
        description="Present the Secret's tls.crt and tls.key to etcd. If false, the Secret needs only ca.crt.",
    )


class MetadataStore(ApiModel):
    """The metadata store of the cluster. All resources with the same endpoints are one cluster."""

    endpoints: tuple[Endpoint, ...] = Field(
        min_length=1,
        max_length=9,
        description="etcd members as host:port. All resources with the same endpoints are one cluster; the short name "
        "of a Service refers to the namespace of the resource.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    tls: MetadataTls | None = Field(None, description="Secret with ca.crt, tls.crt and tls.key. Default: plaintext.")
    auth: SecretRef | None = Field(None, description="Secret with username and password of an etcd user.")


class Resources(ApiModel):
    """Resource requests and limits of a container."""

    requests: dict[Label, Resource] = Field(
        default_factory=dict, max_length=16, description="Amounts reserved on the node."
    )
    limits: dict[Label, Resource] = Field(default_factory=dict, max_length=16, description="Maximum amounts.")


class PodTemplateMetadata(ApiModel):
    """Labels and annotations that are added to the pods."""

    labels: dict[Label, Label] = Field(
        default_factory=dict, max_length=64, description="Additional labels; those of the operator stay."
    )
    annotations: dict[Label, SettingValue] = Field(
        default_factory=dict, max_length=64, description="Additional annotations."
    )


class PodTemplate(ApiModel):
    """Changes to the generated pods. Fields that this version does not know are passed on unchanged."""

    metadata: PodTemplateMetadata = part(PodTemplateMetadata, "Labels and annotations of the pods.")
    spec: AnyObject = Field(default_factory=dict, description="A partial PodSpec, with only the fields to change.")


class ServiceType(StrEnum):
    """How clients reach a Service."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class ClientService(ApiModel):
    """The Service that clients connect to."""

    type: ServiceType = Field(ServiceType.CLUSTER_IP, description="Type of the Service.")
    annotations: dict[Label, SettingValue] = Field(
        default_factory=dict, max_length=64, description="Annotations, for load balancers."
    )


class TlsMode(StrEnum):
    """Whether clients may connect in plaintext."""

    DISABLED = "Disabled"
    OFFERED = "Offered"
    REQUIRED = "Required"


class Tls(ApiModel):
    """TLS of the ports that clients use, and of the HTTP port."""

    RULES = (
        Rule(
            "!has(self.authorizedRoles) || size(self.authorizedRoles) == 0 || self.clientAuthentication",
            "authorizedRoles are read from client certificates: set clientAuthentication",
            ".authorizedRoles",
        ),
    )

    secret_name: Name | None = Field(
        None,
        description="Secret with tls.crt, tls.key and ca.crt, as created by cert-manager. Default: generated by the "
        "operator, if it runs with --tls generated.",
    )
    mode: TlsMode = Field(
        TlsMode.REQUIRED, description="Disabled: no TLS. Offered: clients choose. Required: no plaintext."
    )
    client_authentication: bool = Field(
        False,
        description="Require a client certificate that ca.crt verifies on the BookKeeper port of bookies. HTTP ports "
        "do not require one, and brokers do not yet (condition NotYetServed).",
    )
    authorized_roles: tuple[Label, ...] = Field(
        (),
        max_length=64,
        description="Roles (OU of the certificate) that may connect to the BookKeeper port of bookies. Empty: all "
        "trusted certificates. Brokers do not use it yet.",
    )


def effective_tls(wanted: Tls | None, generated: str | None) -> Tls | None:
    """Return the TLS settings in effect, with the Secret `generated` if `wanted` names none. None means plaintext.

    Settings without any Secret are returned unchanged; `plan.spec_checks` reports them.
    """
    if wanted is not None and wanted.mode is TlsMode.DISABLED:
        return None
    if wanted is None:
        return None if generated is None else Tls.model_validate({"secretName": generated})
    return wanted if wanted.secret_name is not None else wanted.model_copy(update={"secret_name": generated})


class TokenKeyType(StrEnum):
    """The kind of key that verifies tokens."""

    SECRET = "Secret"
    PUBLIC = "Public"


Algorithm = Annotated[str, StringConstraints(pattern=r"^(RS|PS|ES)(256|384|512)$", max_length=5)]
KEY_TYPE_HELP = "Secret: token.key signs and verifies tokens. Public: it only verifies them."
ALGORITHM_HELP = "Signature algorithm of a public key."


class Monitoring(ApiModel):
    """Scraping by Prometheus; has no effect if the CRDs of the Prometheus operator are not installed."""

    enabled: bool = Field(True, description="Create a PodMonitor.")
    interval: Annotated[str, StringConstraints(pattern=r"^[0-9]+(s|m)$", max_length=16)] = Field(
        "30s", description="Interval between scrapes."
    )
    labels: dict[Label, Label] = Field(
        default_factory=dict, max_length=32, description="Labels of the PodMonitor, for Prometheus' selector."
    )


class Metadata(ApiModel):
    """The fields of an object's metadata that the operator reads."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 1
    resource_version: str = ""
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] = ()

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)

    @property
    def keeps_children(self) -> bool:
        """Whether Kubernetes detaches the children of this deleted object: `kubectl delete --cascade=orphan`."""
        return self.deletion_timestamp is not None and "orphan" in self.finalizers
