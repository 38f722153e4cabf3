from quire_bookie.spans import TraceContext, entry_context, parse_traceparent

CONTEXT = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7)


def test_a_context_is_read_back_from_its_text() -> None:
    for context in (CONTEXT, CONTEXT._replace(sampled=False)):
        assert parse_traceparent(context.traceparent) == context


def test_a_later_version_may_append_fields() -> None:
    assert parse_traceparent(f"cc{CONTEXT.traceparent[2:]}-more") == CONTEXT
    assert parse_traceparent(f"{CONTEXT.traceparent}-more") is None
    assert parse_traceparent(f"ff{CONTEXT.traceparent[2:]}") is None


def test_malformed_texts_have_no_context() -> None:
    text = CONTEXT.traceparent
    for broken in ("", text[:-1], text + "0", text.upper(), text.replace("-", "_"), "é" * 55, "0" * 10_000):
        assert parse_traceparent(broken) is None, broken
    assert parse_traceparent(TraceContext(0, 1).traceparent) is None
    assert parse_traceparent(TraceContext(1, 0).traceparent) is None


def test_an_entry_has_the_same_ids_in_each_process_and_others_than_its_neighbours() -> None:
    assert entry_context(7, 9) == entry_context(7, 9)
    found = {entry_context(ledger, entry) for ledger in range(40) for entry in range(40)}
    assert len({context.trace_id for context in found}) == len({context.span_id for context in found}) == 1600
    assert entry_context(1, 11) != entry_context(11, 1)
