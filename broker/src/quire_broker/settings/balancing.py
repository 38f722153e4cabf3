"""Declares the settings of load balancing, with Pulsar's names and defaults where it has them."""

from quire_bookie.dataclass import dataclass
from quire_bookie.settings.declared import MEBIBYTES, MINUTES, PERCENT, setting

RANGE_HALF = "range_equally_divide"
TOPIC_COUNT = "topic_count_equally_divide"
"""Ways to divide a bundle, as Pulsar names them."""


@dataclass(frozen=True, slots=True)
class BalancingSettings:
    """When bundles are assigned, moved and split. Usages are shares of 1; rates are per second."""

    enabled: bool = setting(
        True,
        "loadBalancerEnabled",
        "false: a broker takes each unowned bundle that it is asked for, and no bundle is moved or split",
        short="balancing",
    )
    shedding: bool = setting(
        True, "loadBalancerSheddingEnabled", "move bundles away from overloaded brokers", short="shedding"
    )
    shedding_interval_s: float = setting(
        60.0,
        "loadBalancerSheddingIntervalMinutes",
        "pause between two rounds of the leader",
        short="shedding_interval_minutes",
        unit=MINUTES,
        kind=float,
        gt=0,
    )
    grace_s: float = setting(
        30 * 60.0,
        "loadBalancerSheddingGracePeriodMinutes",
        "a moved bundle stays where it is for this time",
        short="shedding_grace_minutes",
        unit=MINUTES,
        kind=float,
        ge=0,
    )
    settle_s: float = setting(
        180.0,
        "loadBalanceSheddingDelayInSeconds",
        "a broker that gave or got a bundle takes part in moves again after this time, in s",
        short="shedding_delay_s",
        kind=float,
        ge=0,
    )
    hits: int = setting(
        3,
        "loadBalancerSheddingConditionHitCountThreshold",
        "rounds in a row in which a broker must be overloaded before its bundles are moved",
        short="shedding_hits",
        ge=1,
    )
    threshold: float = setting(
        0.1,
        "loadBalancerBrokerThresholdShedderPercentage",
        "a broker is overloaded if its usage is this far above the average, in percentage points",
        short="shedding_threshold_percent",
        unit=PERCENT,
        ge=1,
        le=100,
    )
    overloaded: float = setting(
        0.85,
        "loadBalancerBrokerOverloadedThresholdPercentage",
        "a broker is overloaded above this usage, and gets no bundle while another may have it",
        short="overloaded_percent",
        unit=PERCENT,
        ge=1,
        le=100,
    )
    idle: float = setting(
        0.2,
        "loadBalancerIdleThresholdPercentage",
        "below this usage no bundle is moved, and brokers are compared by their numbers of bundles",
        short="idle_percent",
        unit=PERCENT,
        ge=0,
        le=100,
    )
    moves_per_minute_max: int = setting(
        30, "loadBalancerMaxMovesPerMinute", "bundles that the leader moves within a minute", short="moves_max", ge=1
    )
    topics_max: int = setting(
        50_000,
        "loadBalancerBrokerMaxTopics",
        "a broker with more topics gets no bundle while another may have it",
        short="broker_topics_max",
        ge=1,
    )
    report_interval_s: float = setting(
        60.0,
        "loadBalancerHostUsageCheckIntervalMinutes",
        "interval at which a broker measures its usage",
        short="usage_check_minutes",
        unit=MINUTES,
        kind=float,
        gt=0,
    )
    report_interval_max_s: float = setting(
        15 * 60.0,
        "loadBalancerReportUpdateMaxIntervalMinutes",
        "a load report that changed little is published after this time",
        short="report_interval_max_minutes",
        unit=MINUTES,
        kind=float,
        gt=0,
    )
    report_change: float = setting(
        0.1,
        "loadBalancerReportUpdateThresholdPercentage",
        "change of a rate, or of the usage, after which a load report is published",
        short="report_change_percent",
        unit=PERCENT,
        ge=1,
        le=100,
    )
    report_ttl_s: float = setting(
        1800.0,
        "loadBalancerBrokerLoadDataTTLInSeconds",
        "a broker whose load report is older takes no part in moves, in s",
        short="report_ttl_s",
        kind=float,
        gt=0,
    )
    report_bundles_max: int = setting(
        200,
        "loadBalancerMaxNumberOfBundlesInBundleLoadReport",
        "bundles in a load report, the most loaded ones",
        short="report_bundles_max",
        ge=1,
        le=2000,
    )
    history_interval_s: float = setting(
        15 * 60.0,
        "loadBalancerResourceQuotaUpdateIntervalMinutes",
        "interval at which the leader writes the averages of bundles",
        short="bundle_data_minutes",
        unit=MINUTES,
        kind=float,
        gt=0,
    )
    nic_gbps: float = setting(
        0.0,
        "loadBalancerOverrideBrokerNicSpeedGbps",
        "speed of the broker's network in Gbit/s; 0: unknown, so that the network does not count",
        short="nic_gbps",
        ge=0,
    )
    split: bool = setting(
        True, "loadBalancerAutoBundleSplitEnabled", "split bundles that are above a limit", short="split_bundles"
    )
    split_algorithm: str = setting(
        RANGE_HALF,
        "defaultNamespaceBundleSplitAlgorithm",
        f"{RANGE_HALF}: halves of the hash range; {TOPIC_COUNT}: equal numbers of topics",
        pattern=f"^({RANGE_HALF}|{TOPIC_COUNT})$",
    )
    split_hits: int = setting(
        3,
        "loadBalancerNamespaceBundleSplitConditionHitCountThreshold",
        "checks in a row in which a bundle must be above a limit before it is split",
        ge=1,
    )
    splits_max: int = setting(
        10, "loadBalancerMaxNumberOfBundlesToSplitPerCycle", "bundles that a broker splits in one check", ge=1
    )
    bundle_topics_max: int = setting(
        1000, "loadBalancerNamespaceBundleMaxTopics", "topics of a bundle above which it is split", ge=1
    )
    bundle_sessions_max: int = setting(
        1000,
        "loadBalancerNamespaceBundleMaxSessions",
        "producers and consumers of a bundle above which it is split",
        ge=1,
    )
    bundle_messages_max: int = setting(
        30_000,
        "loadBalancerNamespaceBundleMaxMsgRate",
        "messages in and out of a bundle per second above which it is split",
        ge=1,
    )
    bundle_bytes_max: int = setting(
        100 << 20,
        "loadBalancerNamespaceBundleMaxBandwidthMbytes",
        "MiB in and out of a bundle per second above which it is split",
        short="bundle_bandwidth_mb",
        unit=MEBIBYTES,
        ge=1,
    )
    bundles_max: int = setting(
        128,
        "loadBalancerNamespaceMaximumBundles",
        "bundles of a namespace up to which they are split",
        short="namespace_bundles_max",
        ge=1,
        le=4096,
    )
