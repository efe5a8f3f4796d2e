"""What travels between threads cannot change on the way."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Protocol, get_type_hints

from actors import cleanup_messages, job_messages, messages, supervisor_messages


def _own_classes() -> list[type]:
    return [
        item
        for module in (messages, cleanup_messages, job_messages, supervisor_messages)
        for item in vars(module).values()
        if inspect.isclass(item)
        and item.__module__ == module.__name__
        and Protocol not in item.__bases__
    ]


def test_every_message_is_a_frozen_slotted_dataclass() -> None:
    classes = _own_classes()
    assert classes
    wrong = [
        item.__name__
        for item in classes
        if not (
            dataclasses.is_dataclass(item)
            and vars(item)["__dataclass_params__"].frozen
            and "__slots__" in vars(item)
        )
    ]
    assert not wrong


def test_no_message_carries_a_list_or_a_set() -> None:
    mutable = (list, set, bytearray)
    wrong = [
        f"{item.__name__}.{field}: {hint}"
        for item in _own_classes()
        for field, hint in get_type_hints(item, None, vars(messages)).items()
        if hint in mutable or getattr(hint, "__origin__", None) in mutable
    ]
    assert not wrong, "\n".join(wrong)


def test_messages_have_no_behaviour() -> None:
    wrong = [
        f"{item.__name__}.{name}"
        for item in _own_classes()
        for name, member in vars(item).items()
        if inspect.isfunction(member) and not name.startswith("__")
    ]
    assert not wrong
