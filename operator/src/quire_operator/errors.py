"""Errors of the systems that the operator talks to.

OperatorError
  KubeError             the API server refused a request: HTTP status and message; a retry may help
    ConflictError       another client wrote in between: observe again
  UnreachableError      no response in time; the request may have taken effect
  RefusedError          a broker refused a request; repeating it does not help
"""


class OperatorError(Exception):
    """Base class. A reconciliation that raises one is retried with back-off."""


class KubeError(OperatorError):
    """The API server refused a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the API server refused ({status}): {message}")
        self.status = status


class ConflictError(KubeError):
    """A precondition failed: the resourceVersion or the uid differs."""


class UnreachableError(OperatorError):
    """No response: it is unknown whether the request took effect."""


class RefusedError(OperatorError):
    """A broker refused a request; the message quotes it."""
