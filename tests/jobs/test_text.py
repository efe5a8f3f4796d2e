"""Redaction and cutting of free text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbus.errors import ValidationError
from agentbus.jobs.events import MESSAGE_BYTES, MESSAGE_CHARACTERS, parse_event
from agentbus.jobs.text import ELLIPSIS, REDACTED, UNITS, clip, redact, redact_json
from tests.jobs.test_events import event

# In two parts each, so that no scanner takes this file for a leak.
SECRETS = {
    "private key block": [
        "-----BEGIN " + "RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN " + "PRIVATE KEY-----\nMIIE",
        "-----BEGIN " + "PGP PRIVATE KEY BLOCK-----\nx\n-----END PGP PRIVATE KEY BLOCK-----",
    ],
    "credentials in a URL": [
        *("https://" + "user:hunter2@", "redis://" + ":pw@", "ftp://" + "me@"),
        "https://" + "me@home:p@hunter2@",
    ],
    "sk- key": ["sk-" + "a" * 16, "sk-" + "proj-aB3_" * 8],
    "Stripe key": ["sk_live_" + "abcdefgh12345678"],
    "AWS access key": ["AKIA" + "IOSFODNN7EXAMPLE"],
    "GitHub token": ["ghp_" + "a1B2c3D4e5F6g7H8i9J0a1B2c3D4e5F6g7H8"],
    "GitLab token": ["glpat-" + "abcdefghij0123456789"],
    "Google API key": ["AIza" + "SyA1234567890abcdefghijklmnopqrstuv"],
    "Slack token": ["xoxb-" + "123456789012-abcdef"],
    "JSON web token": ["eyJhbGciOiJI" + ".eyJzdWIiOiIx." + "abc"],
    "Bearer or Basic credentials": [
        "Bearer " + "abcdefgh12345678",
        "authorization: bearer  " + "x" * 40,
        "Basic " + "dXNlcjpodW50ZXIyMw==",
    ],
}


def test_every_unit_of_the_redactor_has_an_example() -> None:
    assert SECRETS.keys() == {unit.name for unit in UNITS}


@pytest.mark.parametrize("secret", [text for texts in SECRETS.values() for text in texts])
def test_a_secret_is_replaced_wherever_it_stands(secret: str) -> None:
    for text in (
        secret,
        f"before {secret}",
        f"({secret} after",
        f"ключ:{secret}\n",
        f"密钥{secret}在",
    ):
        shown = redact(text)
        assert REDACTED in shown
        assert secret not in shown
        assert not any(part in shown for part in ("hunter2", "MIIE", secret[-12:]))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sk-" + "a" * 15,
        "Bearer " + "a" * 15,
        "a task-list-with-many-many-items",
        "the bearer of this letter",
        "https://example.com/@user and me@example.com",
        "basic understanding of it",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("cut", range(490, 500, 3))
def test_a_secret_across_the_cut_leaves_nothing_of_itself(cut: int) -> None:
    secret = "sk-" + "q" * 40
    shown = clip(redact("x" * (cut - 5) + " " + secret + " tail" * 100), 500, 1500)
    assert "qq" not in shown
    assert len(shown) == 500


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x" * 500, "x" * 500),
        ("x" * 501, "x" * 499 + ELLIPSIS),
        ("x" * 499 + "😀", "x" * 499 + "😀"),
        ("x" * 499 + "😀😀", "x" * 499 + ELLIPSIS),
        ("x" * 498 + "😀😀😀", "x" * 498 + "😀" + ELLIPSIS),
        ("😀" * 376, "😀" * 374 + ELLIPSIS),
        ("a\0b", "a\ufffdb"),
        ("\ud83d\ude00", "😀"),
        ("\ud83d", "\ufffd"),
    ],
)
def test_text_is_cut_on_code_points_and_bytes(text: str, shown: str) -> None:
    assert clip(text, 500, 1500) == shown


@settings(deadline=None)
@given(st.text(st.characters(codec=None), max_size=1200))
def test_cut_text_is_always_accepted(text: str) -> None:
    shown = clip(text, MESSAGE_CHARACTERS, MESSAGE_BYTES)
    try:
        parse_event(event("warning", message=shown))
    except ValidationError as error:  # pragma: no cover
        raise AssertionError(error.message) from None


@settings(deadline=None)
@given(st.text(max_size=300))
def test_redacting_twice_is_redacting_once(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


def test_long_text_is_redacted_in_a_moment() -> None:
    for filler in ("sk-", "-----BEGIN PRIVATE KEY-----", "a://", "eyJ", "Bearer ", "x@"):
        assert redact(filler * 20_000) is not None


def test_a_result_is_redacted_in_every_text_and_name() -> None:
    secret = "sk-" + "a" * 20
    value = {"a": [secret, 1, None, True], secret: {"deep": f"x {secret}"}, "n": 1.5}
    assert redact_json(value) == {
        "a": [REDACTED, 1, None, True],
        REDACTED: {"deep": f"x {REDACTED}"},
        "n": 1.5,
    }
