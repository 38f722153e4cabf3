"""What can go wrong outside of the operator.

OperatorError
  KubeError             the API server refused: status and its words; a retry may help
    ConflictError       somebody wrote in between: observe anew
    GoneError           what a watch should go on from is too old: list anew
  UnreachableError      no answer in time; what was asked for may have happened
  RefusedError          a broker refused what was asked; repeating it does not help
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


class GoneError(KubeError):
    """The resourceVersion is older than the API server remembers."""


class UnreachableError(OperatorError):
    """No answer: unknown whether what was asked for happened."""


class RefusedError(OperatorError):
    """A broker refused; the message has its words."""
