"""`ManagedLedger`: the spec of its proxies. Models, defaults and validation rules only."""

from typing import Annotated

from pydantic import Field, StringConstraints

from quire_operator.api.bookie_spec import settings_rule
from quire_operator.api.fields import ApiModel, Label, Name, names, section
from quire_operator.api.shared import (
    IMAGE_HELP,
    PRIORITY_HELP,
    SETTINGS_HELP,
    SETTINGS_MAX,
    TEMPLATE_HELP,
    ClientService,
    Image,
    PodTemplate,
    Resources,
    SettingValue,
    Tls,
)

PROXIES_MAX = 100
HOSTS_MAX = 16
Host = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9:]([-A-Za-z0-9.:]*[A-Za-z0-9])?$", max_length=253)]

RESERVED_PROXY_SETTINGS = (
    *("servicePort", "servicePortTls", "webServicePort", "webServicePortTls", "bindAddress", "advertisedAddress"),
    *("metadataStoreUrl", "brokerServiceURL", "brokerServiceURLTLS", "brokerWebServiceURL", "brokerWebServiceURLTLS"),
    *("brokerProxyAllowedHostNames", "brokerProxyAllowedTargetPorts"),
)


class Proxy(ApiModel):
    """The processes that connect clients to the brokers of this resource, and to nothing else."""

    RULES = (settings_rule(RESERVED_PROXY_SETTINGS),)

    replicas: Annotated[int, Field(ge=0, le=PROXIES_MAX)] = Field(2, description="Number of proxies.")
    image: Image | None = Field(None, description=IMAGE_HELP)
    resources: Resources = section(
        Resources, "CPU and memory of each pod. Default: 100m and 256Mi requested, 512Mi at most."
    )
    service: ClientService = section(ClientService, "The Service for clients.")
    hosts: tuple[Host, ...] = names(
        HOSTS_MAX, "Further host names and addresses that clients use, for the generated certificate."
    )
    tls: Tls | None = Field(
        None, description="TLS of the proxies' ports, 6651 and 8443. Default: with generated certificates, or none."
    )
    priority_class_name: Name | None = Field(None, description=PRIORITY_HELP)
    pod_template: PodTemplate = section(PodTemplate, TEMPLATE_HELP)
    settings: dict[Label, SettingValue] = Field(
        default_factory=dict, max_length=SETTINGS_MAX, description=SETTINGS_HELP
    )
