"""What can go wrong with a place.

QuireError
|- PlaceError             it cannot be used; a retry helps only after what the text says was mended, or once it answers
   |- ObjectMissingError  there is no object of that name; no retry
"""

from quire_bookie.errors import QuireError


class PlaceError(QuireError):
    """A folder or bucket did not do what was asked. One line, without credentials."""


class ObjectMissingError(PlaceError):
    """There is no object of that name."""
