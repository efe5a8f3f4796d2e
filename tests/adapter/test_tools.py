"""The tool list, and the check of tool arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentbus.adapter.tools import INSTRUCTIONS, TOOLS, parse_call
from agentbus.config import load_config
from agentbus.encoding import encode
from agentbus.errors import NotFoundError, ValidationError
from agentbus.protocol.operations import OPERATIONS, Receive, Send
from agentbus.protocol.peer import PEER_OPERATIONS, required_arguments

CONFIG = load_config(Path("/nonexistent/agentbus-test.json"))


def parse(name: str, arguments: Any = None) -> Any:
    return parse_call(name, arguments, lambda: CONFIG)


def test_every_operation_is_a_tool_and_there_are_at_most_fifteen() -> None:
    assert {tool.name for tool in TOOLS} == {*OPERATIONS, "peer"}
    assert len(TOOLS) <= 15


def test_every_description_begins_with_the_name_of_the_bus() -> None:
    assert all(tool.description.startswith("Agentbus: ") for tool in TOOLS)


def test_input_schemas_show_the_arguments_that_are_accepted() -> None:
    by_name = {tool.name: tool for tool in TOOLS}
    for name, operation in OPERATIONS.items():
        assert set(by_name[name].input_schema["properties"]) == set(operation.FIELDS)
    assert all(tool.input_schema["additionalProperties"] is False for tool in TOOLS)
    assert by_name["send"].input_schema["required"] == ["channel", "content"]
    assert "required" not in by_name["receive"].input_schema


def test_output_schemas_admit_the_error_shape_and_nothing_is_required() -> None:
    for tool in TOOLS:
        assert tool.output_schema["properties"]["error"] == {"type": "object"}
        assert "required" not in tool.output_schema
        assert "additionalProperties" not in tool.output_schema
        kinds = [set(schema) for schema in tool.output_schema["properties"].values()]
        assert all(kind == {"type"} for kind in kinds), "keep output schemas shallow"


def test_only_tools_that_move_nothing_are_read_only() -> None:
    assert {tool.name for tool in TOOLS if tool.read_only} == {
        "whoami",
        "list_channels",
        "get_memory",
        "history",
        "search",
        "discover",
    }


def test_receive_asks_for_large_results_and_to_be_loaded_at_once() -> None:
    receive = next(tool for tool in TOOLS if tool.name == "receive")
    assert receive.meta == {"anthropic/maxResultSizeChars": 500_000, "anthropic/alwaysLoad": True}


def test_the_instructions_are_short() -> None:
    assert len(encode(INSTRUCTIONS)) < 2048


def test_no_description_is_longer_than_what_clients_keep_of_it() -> None:
    assert max(len(tool.description) for tool in TOOLS) < 2048


def test_the_peer_tool_names_every_operation_with_each_of_its_arguments() -> None:
    peer = next(tool for tool in TOOLS if tool.name == "peer")
    assert peer.input_schema["properties"]["op"]["enum"] == list(PEER_OPERATIONS)
    assert peer.input_schema["required"] == ["op"]
    lines = peer.description.splitlines()[1:]
    for line, (name, operation) in zip(lines, PEER_OPERATIONS.items(), strict=True):
        shown = line[len(name) + 1 : line.index(")")]
        required = required_arguments(operation)
        expected = [key if key in required else f"{key}?" for key in operation.FIELDS]
        assert line.startswith(f"{name}(")
        assert [part for part in shown.split(", ") if part] == expected


def test_sound_arguments_become_an_operation() -> None:
    assert parse("send", {"channel": "general", "content": "hi"}) == Send("general", "hi")
    assert parse("receive") == Receive()
    assert parse("receive", {"count": None}) == Receive()


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("send", {"channel": "general"}, "send: the argument content is required"),
        ("send", {"channel": "general", "content": 5}, "send: content must be text, not 5"),
        (
            "send",
            {"channel": "c", "content": "x", "chanel": "y"},
            "unknown argument 'chanel'",
        ),
        ("receive", {"count": True}, "receive: count must be a whole number"),
        ("receive", {"wait_seconds": "5"}, "receive: wait_seconds must be a number"),
        ("receive", {"channels": "general"}, "receive: channels must be a list"),
        ("receive", [], "receive: the arguments must be an object"),
        ("receive", {"wait_seconds": 61}, r"at most 60 \(recv_max_wait_seconds\), not 61"),
        ("receive", {"count": 1001}, r"at most 1000 \(recv_max_count\), not 1001"),
        ("history", {"channel": "c", "count": 1001}, "recv_max_count"),
        ("history", {}, "give either channel or message_id"),
        ("search", {"text": "x" * 65536}, "text must be 0 to 4096 bytes, this is 65536"),
        ("search", {"count": 1001}, "count must be 1 to 1000, not 1001"),
        ("search", {"since": "yesterday"}, "RFC 3339 time such as"),
        ("create_channel", {"name": "@x"}, "reserved"),
    ],
)
def test_bad_arguments_are_refused_with_what_to_correct(
    name: str, arguments: Any, says: str
) -> None:
    with pytest.raises(ValidationError, match=says):
        parse(name, arguments)


def test_the_largest_values_that_the_settings_allow_are_accepted() -> None:
    assert parse("receive", {"wait_seconds": 60, "count": 1000}).wait_seconds == 60


def test_an_unknown_tool_is_not_found_and_the_known_ones_are_named() -> None:
    with pytest.raises(NotFoundError, match="known: whoami"):
        parse("teleport", {})


def test_the_configuration_is_read_only_for_arguments_that_it_bounds() -> None:
    def unreadable() -> Any:
        raise AssertionError("the configuration was read")

    assert parse_call("send", {"channel": "c", "content": "x"}, unreadable) == Send("c", "x")
