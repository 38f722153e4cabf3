import pytest

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.tracing import Times, Tracing, chosen_in
from quire_bookie.settings.traces import TraceSettings
from quire_bookie.spans import Kind, TraceContext
from tests.support.kept_spans import KeptSpans


def tracing(**settings: float) -> tuple[Tracing, KeptSpans]:
    spans = KeptSpans()
    return Tracing(TraceSettings(**settings), spans, "test", SystemClock(), SystemChance()), spans  # type: ignore[arg-type]


@pytest.mark.parametrize("stride", [1, 2, 100, 1 << 200])
def test_every_run_has_the_chosen_entries_that_its_parts_have(stride: int) -> None:
    for ledger in (0, 7, 2**40):
        alone = [entry for entry in range(300) if chosen_in(stride, ledger, entry, 1) is not None]
        assert len(alone) in (300 // stride, 300 // stride + 1, 0)
        together, first = [], 0
        while (entry := chosen_in(stride, ledger, first, 300 - first)) is not None:
            together.append(entry)
            first = entry + 1
        assert together == alone


def test_a_larger_stride_chooses_a_part_of_what_a_smaller_one_does() -> None:
    few, many = ({e for e in range(4000) if chosen_in(stride, 5, e, 1) is not None} for stride in (40, 10))
    assert few < many and len(few) == 100


async def test_more_operations_than_the_maximum_are_refused_and_the_stride_grows() -> None:
    made, _ = tracing(ratio=0.5, per_s_max=3)
    assert [made.admit() for _ in range(10)] == [True] * 3 + [False] * 7
    assert (made.refused, made.stride) == (7, 2)
    made._since_s -= 2.0  # two seconds pass
    made._chosen = 1000
    made.admit()
    assert made.stride == 4
    made._since_s -= 1000.0
    made.admit()
    assert made.stride == 2
    made._since_s -= 1000.0
    made.admit()
    assert made.stride == 2, "not below the ratio"


async def test_a_ratio_of_0_chooses_no_entry() -> None:
    made, _ = tracing(ratio=0)
    assert all(chosen_in(made.stride, ledger, 0, 10**9) is None for ledger in range(1, 100))


async def test_messages_are_looked_at_up_to_the_maximum() -> None:
    made, _ = tracing(looks_per_s_max=10)
    assert sum(made.may_look(50.0) for _ in range(100)) in (10, 11)
    assert made.may_look(50.2) and not tracing(looks_per_s_max=0)[0].may_look(50.0)


async def test_spans_have_wall_times_and_ids_of_their_own() -> None:
    made, spans = tracing()
    now_s = made._loop.time()
    parent = TraceContext(3, 4)
    first = made.below(parent, "one", Times(now_s - 1, now_s), {"a": 1}, Kind.SERVER)
    second = made.below(first, "two", Times(now_s, now_s - 5), {}, Kind.INTERNAL)
    one, two = spans.taken
    assert (one.trace_id, one.parent, two.parent) == (3, 4, first.span_id)
    assert len({4, first.span_id, second.span_id}) == 3
    assert one.end_ns - one.start_ns == pytest.approx(10**9, abs=1000)
    assert abs(one.end_ns - SystemClock().now_ms() * 10**6) < 60 * 10**9
    assert two.start_ns == two.end_ns, "no span ends before it begins"
