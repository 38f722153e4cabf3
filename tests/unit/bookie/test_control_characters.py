"""Control characters are found and shown as escapes; other letters stay."""

import pytest

from quire_bookie.control_characters import escaped, has_control_characters


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("a\rb", "a\\rb"),
        ("a\tb", "a\\tb"),
        ("\x00", "\\x00"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x7f", "\\x7f"),
        ("\x85", "\\x85"),
        ("\x9b", "\\x9b"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ],
)
def test_a_control_character_is_shown_as_an_escape(found: str, shown: str) -> None:
    assert has_control_characters(found)
    assert escaped(found) == shown


@pytest.mark.parametrize("text", ["", "plain words", "Grüße, 東京", "a%b\\n", "\xa0", "~"])
def test_other_letters_stay(text: str) -> None:
    assert not has_control_characters(text)
    assert escaped(text) == text
