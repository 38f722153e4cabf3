"""Determines when jobs are due, by schedule (cronsim) or by request. Pure; all times are UTC."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cronsim import CronSim, CronSimError

AHEAD_MAX_S = 600.0
"""Tolerance for clocks that differ; a requested time further ahead is treated as a mistake."""
_NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS = 5


def schedule_fault(schedule: str) -> str | None:
    """Return the error of a schedule, or None."""
    try:
        _cron(schedule, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        reason = str(error)
        return (
            f"schedule {schedule!r} is not a cron expression ({reason[:1].lower()}{reason[1:]}): use five fields, "
            "minute hour day month weekday, e.g. '17 * * * *', or @hourly"
        )
    return None


def _cron(schedule: str, at: datetime, *, backwards: bool = False) -> CronSim:
    text = _NAMES.get(schedule.strip().lower(), schedule)
    if len(text.split()) != _FIELDS:
        raise CronSimError("Wrong number of fields")
    return CronSim(text, at, reverse=backwards)


def latest_slot_s(schedule: str, now_s: float) -> float | None:
    """Return the latest time of a valid schedule that is not in the future; None if none is within fifty years."""
    behind = datetime.fromtimestamp(int(now_s), UTC) + timedelta(seconds=1)
    return _seconds(next(_cron(schedule, behind, backwards=True), None))


def next_slot_s(schedule: str, now_s: float) -> float | None:
    """Return the first time of a valid schedule that is in the future."""
    return _seconds(next(_cron(schedule, datetime.fromtimestamp(int(now_s), UTC)), None))


def _seconds(found: datetime | None) -> float | None:
    return None if found is None else found.timestamp()


@dataclass(frozen=True, slots=True)
class RequestedRuns:
    """The runs that the annotation requests."""

    slots_s: dict[str, float]
    """Requested time by job, in seconds since the epoch."""
    faults: tuple[str, ...] = ()


def requested_runs(annotation: str | None, jobs: frozenset[str], now_s: float) -> RequestedRuns:
    """Parse `name@2026-01-31T04:00:30Z,...`. If a job occurs twice, the later time counts."""
    slots: dict[str, float] = {}
    faults = []
    for entry in filter(None, (one.strip() for one in (annotation or "").split(","))):
        name, _, time = entry.partition("@")
        try:
            moment = datetime.fromisoformat(time)
        except ValueError:
            faults.append(f"{entry!r}: expected JOB@TIME, the time like 2026-01-31T04:00:30Z")
            continue
        if moment.tzinfo is None:
            faults.append(f"{entry!r}: the time has no time zone: write {time}Z")
        elif name not in jobs:
            faults.append(f"{entry!r}: no job {name!r}; declared jobs: {', '.join(sorted(jobs)) or 'none'}")
        elif moment.timestamp() > now_s + AHEAD_MAX_S:
            faults.append(f"{entry!r}: the time is in the future; use the current time")
        else:
            slots[name] = max(slots.get(name, 0.0), float(int(moment.timestamp())))
    return RequestedRuns(slots, tuple(faults))
