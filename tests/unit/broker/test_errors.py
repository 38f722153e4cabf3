"""The table from errors to codes."""

import pytest

from quire_bookie.errors import BadVersionError, LedgerFencedError, QuorumError
from quire_broker import errors
from quire_broker.errors import BrokerError, ServerError, server_error_of


def test_every_broker_error_has_its_own_line_or_is_unknown() -> None:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BrokerError)]
    unlisted = {kind.__name__ for kind in classes if kind not in errors.SERVER_ERRORS}
    assert unlisted == {
        "CompactionError",
        "ConflictError",
        "NotFoundError",
        "OffloadError",
        "SegmentDamagedError",
        "SegmentMissingError",
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.TopicNotFoundError("x"), ServerError.TOPIC_NOT_FOUND),
        (errors.ProducerFencedError("x"), ServerError.PRODUCER_FENCED),
        (errors.ConflictError("x"), ServerError.UNKNOWN),
        (QuorumError("x"), ServerError.PERSISTENCE),
        (LedgerFencedError("x"), ServerError.SERVICE_NOT_READY),
        (BadVersionError("x"), ServerError.METADATA),
        (RuntimeError("x"), ServerError.UNKNOWN),
    ],
)
def test_the_nearest_class_decides(error: BaseException, code: ServerError) -> None:
    assert server_error_of(error) is code
