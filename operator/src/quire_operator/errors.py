"""What can go wrong outside of the operator.

OperatorError
  KubeError             the API server refused: status and its words; a retry may help
    ConflictError       somebody wrote in between: observe anew
  UnreachableError      no answer in time; what was asked for may have happened
"""


class OperatorError(Exception):
    """Base; a pass that ends in one is repeated with back-off."""


class KubeError(OperatorError):
    """The API server refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the API server refused ({status}): {message}")
        self.status = status


class ConflictError(KubeError):
    """A precondition did not hold: another resourceVersion, another uid."""


class UnreachableError(OperatorError):
    """No answer: unknown whether what was asked for happened."""
