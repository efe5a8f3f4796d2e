"""The example of an inspection command, run as the bus runs it and on a bus."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentbus.command_run import Cancellation
from agentbus.encoding import encode
from agentbus.errors import InspectionRejectedError
from agentbus.inspection import Allowed, Denied, Verdict, inspect
from tests.bus_fixture import ThrowAwayBus

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "inspection_hook.py"

# In two parts each, so that no scanner takes this file for a leak.
SECRETS = {
    "an AWS access key": "AKIA" + "IOSFODNN7EXAMPLE",
    "an Anthropic API key": "sk-ant-" + "api03-abcdefghij0123456789",
    "an OpenAI API key": "sk-" + "proj-" + "aB3-" * 12,
    "a GitHub token": "ghp_" + "a1B2c3D4e5F6g7H8i9J0a1B2c3D4e5F6g7H8",
    "a GitLab token": "glpat-" + "abcdefghij0123456789",
    "a Google API key": "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "a Slack token": "xoxb-" + "123456789012-abcdef",
    "a Stripe key": "sk_live_" + "abcdefgh12345678",
    "a private key": "-----BEGIN " + "OPENSSH PRIVATE KEY-----",
}


@pytest.fixture
def cancellation() -> Iterator[Cancellation]:
    cancellation = Cancellation()
    yield cancellation
    cancellation.close()


def verdict_on(payload: dict[str, Any], cancellation: Cancellation) -> Verdict:
    document = encode({"operation": "send", "sender": {}, "payload": payload})
    return inspect([sys.executable, "-I", str(EXAMPLE)], document, 20.0, cancellation)


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_is_denied_with_its_kind_and_never_repeated(
    kind: str, cancellation: Cancellation
) -> None:
    verdict = verdict_on({"content": f"use {SECRETS[kind]}, please"}, cancellation)
    assert isinstance(verdict, Denied)
    assert f"The field content holds what looks like {kind}." in verdict.reason
    assert SECRETS[kind] not in verdict.reason


@pytest.mark.parametrize(
    "payload",
    [
        {"content": "x", "subject": SECRETS["a Slack token"]},
        {"content": "x", "tags": ["a", SECRETS["a Slack token"]]},
        {"content": "x", "metadata": {"deep": [{"er": SECRETS["a Slack token"]}]}},
        {"content": "x", "metadata": {SECRETS["a Slack token"]: 1}},
        {"content": "x", "references": [{"kind": "url", "value": SECRETS["a Slack token"]}]},
    ],
)
def test_a_secret_is_found_in_every_field(
    payload: dict[str, Any], cancellation: Cancellation
) -> None:
    field = list(payload)[-1]
    verdict = verdict_on(payload, cancellation)
    assert isinstance(verdict, Denied)
    assert verdict.reason.startswith(f"The field {field} holds")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "the token is in GITHUB_TOKEN, the key begins with sk-ant-",
        "a sk-learn-based-classification-of-everything, and a task-list-with-many-many-items",
        "BEGIN PRIVATE KEY is how such a file begins",
        "ключ 密钥 🔑",
    ],
)
def test_ordinary_text_is_allowed(content: str, cancellation: Cancellation) -> None:
    assert verdict_on({"channel": "general", "content": content}, cancellation) == Allowed()


def test_the_example_works_as_it_is_on_a_bus() -> None:
    with ThrowAwayBus(inspection_command=[str(EXAMPLE)], inspection_timeout_seconds=30) as bus:
        sam = bus.attach("Sam")
        assert sam.call("send", channel="general", content="hello")["sequence"] == 1
        with pytest.raises(InspectionRejectedError) as caught:
            sam.call("send", channel="general", content=SECRETS["a GitHub token"])
        assert "environment variable" in (caught.value.reason or "")
        assert sam.call("send", channel="general", content="see GITHUB_TOKEN")["sequence"] == 2
