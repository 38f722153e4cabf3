"""Declares where a bookie finds its rack."""

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.settings.declared import absolute, setting


@dataclass(frozen=True, slots=True)
class RackSettings:
    """The source of a bookie's rack; with neither rack nor file it publishes none."""

    rack: str = setting("", "bookieRack", "rack of the bookie, /zone/rack or only a rack; empty: not published")
    annotations_path: str = setting(
        "",
        "bookieRackAnnotationsFile",
        "Kubernetes: file with the pod's annotations, one of which is the rack if bookieRack is empty",
        short="rack_annotations_file",
        key_default="",
        read=absolute,
    )
    """Has a line `key="value"` for each annotation of the pod."""
    annotation: str = setting(
        limits.RACK_ANNOTATION, "bookieRackAnnotation", "key of that annotation", short="rack_annotation"
    )
    """An empty value of the annotation means that the Kubernetes node has no rack."""
    wait_s: float = setting(
        limits.RACK_WAIT_S,
        "bookieRackWaitSeconds",
        "time that a bookie without a known rack waits for it, in s, before it exits",
        short="rack_wait_s",
        ge=0,
    )
