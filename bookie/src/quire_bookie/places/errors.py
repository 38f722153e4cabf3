"""Errors of storage places (object stores and folders).

QuireError
|- PlaceError             the place cannot be used; retry after its text's cause is fixed, or once the service answers
   |- ObjectMissingError  no object has that name; a retry does not help
"""

from quire_bookie.errors import QuireError


class PlaceError(QuireError):
    """An operation on a folder or bucket failed. The text is one line and contains no credentials."""


class ObjectMissingError(PlaceError):
    """No object has that name."""
