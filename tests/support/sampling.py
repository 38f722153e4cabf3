"""Long enumerations: a sample runs by default, all of it as a slow test, and so in CI."""

import pytest


def one_in(count: int) -> pytest.MarkDecorator:
    """Pass `every`: `count` by default, 1 in a slow test. Prefer a prime `count`: cases in a row repeat kinds."""
    return pytest.mark.parametrize(
        "every", [pytest.param(count, id="sample"), pytest.param(1, id="all", marks=pytest.mark.slow)]
    )
