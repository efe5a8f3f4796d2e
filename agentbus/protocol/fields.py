"""Checks for the fields of client operations: the same ones judge a tool call and a frame.

Each check takes the raw JSON value and returns the value to store, or raises ValidationError with
a text that a model can act on. Each also knows its JSON schema, so the tool list cannot drift away
from what is really accepted.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from agentbus.encoding import check_text, check_value
from agentbus.envelope import Reference
from agentbus.errors import ValidationError
from agentbus.limits import INBOX_PREFIX, NAME_BYTES, REFERENCES, TAGS, WHOLE_MAX

_REFERENCE_KINDS = ("url", "unix_path", "windows_path")


class Check(Protocol):
    """One field's rule."""

    def __call__(self, value: Any) -> Any: ...

    def schema(self) -> dict[str, Any]: ...


def describe(value: Any) -> str:
    """A bounded, printable account of a bad value, for error messages."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def is_whole(text: str, maximum: int) -> bool:
    """Whether text is a whole number from 0 to `maximum`, in no more digits than that has: Python
    refuses to read thousands of them."""
    is_short = len(text) <= len(str(maximum))
    return is_short and text.isascii() and text.isdigit() and int(text) <= maximum


def check_name(name: str, what: str | None = None) -> str:
    """A channel, agent, type, thread or tag name: normalised to NFC, 1 to 128 bytes, printable.

    `what`: the error begins with it, where nobody puts the name of the field before it.
    """
    check_text(name, what or "name")
    subject = "" if what is None else f"{what} "
    if not name.isascii():
        name = unicodedata.normalize("NFC", name)
    size_bytes = len(name) if name.isascii() else len(name.encode())
    if not 1 <= size_bytes <= NAME_BYTES:
        raise ValidationError(
            f"{subject}must be 1 to {NAME_BYTES} bytes of UTF-8, this is {size_bytes} bytes"
        )
    if not name.isprintable():
        for character in name:
            if unicodedata.category(character) in ("Cc", "Zl", "Zp"):
                raise ValidationError(
                    f"{subject}must not hold control characters or line breaks "
                    f"(U+{ord(character):04X})"
                )
    return name


@dataclass(frozen=True, slots=True)
class Name:
    """A name: 1 to 128 bytes of UTF-8, stored in NFC, no control characters."""

    description: str = ""
    max_characters: int | None = None

    def __call__(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValidationError(f"must be text, not {describe(value)}")
        name = check_name(value)
        if self.max_characters is not None and len(name) > self.max_characters:
            raise ValidationError(
                f"must be at most {self.max_characters} characters, this has {len(name)}"
            )
        return name

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string", "minLength": 1}
        if self.max_characters is not None:
            schema["maxLength"] = self.max_characters
        return _described(schema, self.description)


@dataclass(frozen=True, slots=True)
class ChannelName(Name):
    """The name of a channel that is there; that of an inbox is a sign longer than its agent's."""

    def __call__(self, value: Any) -> str:
        if isinstance(value, str) and value.startswith(INBOX_PREFIX) and value != INBOX_PREFIX:
            return INBOX_PREFIX + check_name(value.removeprefix(INBOX_PREFIX))
        return Name.__call__(self, value)


@dataclass(frozen=True, slots=True)
class Text:
    """Any text without NUL; bounded in characters or bytes where given.

    `printable`: without control characters, but for line breaks and tabs.
    """

    description: str = ""
    max_characters: int | None = None
    max_bytes: int | None = None
    min_bytes: int = 0
    min_characters: int = 0
    printable: bool = False

    def __call__(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValidationError(f"must be text, not {describe(value)}")
        check_text(value)
        if self.max_characters is not None and len(value) > self.max_characters:
            raise ValidationError(
                f"must be at most {self.max_characters} characters, this has {len(value)}"
            )
        if len(value) < self.min_characters:
            raise ValidationError("must not be empty")
        if self.printable:
            for character in value:
                if unicodedata.category(character) == "Cc" and character not in "\n\t":
                    raise ValidationError(
                        f"must not hold control characters but line breaks and tabs "
                        f"(U+{ord(character):04X})"
                    )
        if self.max_bytes is not None or self.min_bytes:
            size_bytes = len(value.encode())
            if size_bytes < self.min_bytes or (
                self.max_bytes is not None and size_bytes > self.max_bytes
            ):
                raise ValidationError(
                    f"must be {self.min_bytes} to {self.max_bytes} bytes, this is {size_bytes}"
                )
        return value

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string"}
        if self.max_characters is not None:
            schema["maxLength"] = self.max_characters
        if self.min_bytes or self.min_characters:
            schema["minLength"] = 1
        return _described(schema, self.description)


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number within bounds; a bool or 5.0 is not one."""

    minimum: int
    maximum: int | None = None
    description: str = ""

    def __call__(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValidationError(f"must be a whole number, not {describe(value)}")
        maximum = WHOLE_MAX if self.maximum is None else self.maximum
        if not self.minimum <= value <= maximum:
            is_bounded = self.maximum is not None or value > maximum
            upper = f" to {maximum}" if is_bounded else " or more"
            raise ValidationError(f"must be {self.minimum}{upper}, not {value}")
        return value

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "integer", "minimum": self.minimum}
        if self.maximum is not None:
            schema["maximum"] = self.maximum
        return _described(schema, self.description)


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number of at least `minimum`, and at most `maximum` where there is one."""

    minimum: float
    description: str = ""
    maximum: float | None = None

    def __call__(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValidationError(f"must be a number, not {describe(value)}")
        if not self.minimum <= value < float("inf"):
            raise ValidationError(f"must be {self.minimum} or more, not {describe(value)}")
        if self.maximum is not None and value > self.maximum:
            raise ValidationError(
                f"must be {self.minimum} to {self.maximum}, not {describe(value)}"
            )
        return float(value)

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "number", "minimum": self.minimum}
        if self.maximum is not None:
            schema["maximum"] = self.maximum
        return _described(schema, self.description)


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false, nothing else."""

    description: str = ""

    def __call__(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValidationError(f"must be true or false, not {describe(value)}")
        return value

    def schema(self) -> dict[str, Any]:
        return _described({"type": "boolean"}, self.description)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]
    description: str = ""

    def __call__(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise ValidationError(f"must be one of {', '.join(self.words)}, not {describe(value)}")
        return value

    def schema(self) -> dict[str, Any]:
        return _described({"type": "string", "enum": list(self.words)}, self.description)


@dataclass(frozen=True, slots=True)
class Names:
    """A list of distinct names, bounded."""

    maximum: int = TAGS
    description: str = ""

    def __call__(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise ValidationError(f"must be a list of names, not {describe(value)}")
        if len(value) > self.maximum:
            raise ValidationError(f"must hold at most {self.maximum} names, this has {len(value)}")
        names: dict[str, None] = {}
        for index, item in enumerate(value):
            if not isinstance(item, str):
                raise ValidationError(f"item {index} must be text, not {describe(item)}")
            try:
                names[check_name(item)] = None
            except ValidationError as error:
                raise ValidationError(f"item {index} {error.message}") from None
        return tuple(names)

    def schema(self) -> dict[str, Any]:
        schema = {"type": "array", "items": {"type": "string"}, "maxItems": self.maximum}
        return _described(schema, self.description)


@dataclass(frozen=True, slots=True)
class Texts:
    """A list of distinct texts that are not empty, bounded in number and in length."""

    minimum: int
    maximum: int
    max_characters: int
    description: str = ""

    def __call__(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise ValidationError(f"must be a list of texts, not {describe(value)}")
        if not self.minimum <= len(value) <= self.maximum:
            raise ValidationError(
                f"must hold {self.minimum} to {self.maximum} items, this has {len(value)}"
            )
        check = Text(max_characters=self.max_characters, min_characters=1)
        for index, item in enumerate(value):
            try:
                check(item)
            except ValidationError as error:
                raise ValidationError(f"item {index} {error.message}") from None
            if item in value[:index]:
                raise ValidationError(f"item {index} is there twice: {describe(item)}")
        return tuple(value)

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": self.max_characters},
            "maxItems": self.maximum,
        }
        if self.minimum:
            schema["minItems"] = self.minimum
        return _described(schema, self.description)


@dataclass(frozen=True, slots=True)
class References:
    """Structured pointers, kept byte for byte."""

    description: str = ""

    def __call__(self, value: Any) -> tuple[Reference, ...]:
        if not isinstance(value, list):
            raise ValidationError(f"must be a list of references, not {describe(value)}")
        if len(value) > REFERENCES:
            raise ValidationError(f"must hold at most {REFERENCES} references, has {len(value)}")
        return tuple(self._reference(index, item) for index, item in enumerate(value))

    @staticmethod
    def _reference(index: int, item: Any) -> Reference:
        if not isinstance(item, dict) or set(item) != {"kind", "value"}:
            raise ValidationError(f"item {index} must be an object of exactly kind and value")
        kind, text = item["kind"], item["value"]
        if kind not in _REFERENCE_KINDS:
            raise ValidationError(
                f"item {index}: kind must be one of {', '.join(_REFERENCE_KINDS)}, "
                f"not {describe(kind)}"
            )
        if not isinstance(text, str) or not text:
            raise ValidationError(f"item {index}: value must be text that is not empty")
        check_text(text, f"the value of item {index}")
        return Reference(kind, text)

    def schema(self) -> dict[str, Any]:
        item = {
            "type": "object",
            "properties": {
                "kind": {"type": "string", "enum": list(_REFERENCE_KINDS)},
                "value": {"type": "string"},
            },
            "required": ["kind", "value"],
            "additionalProperties": False,
        }
        return _described(
            {"type": "array", "items": item, "maxItems": REFERENCES}, self.description
        )


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object with text keys and any JSON value within the limits of encoding.py."""

    description: str = ""

    def __call__(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValidationError(f"must be an object, not {describe(value)}")
        check_value(value)
        return value

    def schema(self) -> dict[str, Any]:
        return _described({"type": "object"}, self.description)


@dataclass(frozen=True, slots=True)
class Moment:
    """An RFC 3339 time with a zone; becomes microseconds since the epoch."""

    description: str = ""

    def __call__(self, value: Any) -> int:
        try:
            moment = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            moment = None
        if moment is None or moment.tzinfo is None:
            raise ValidationError(
                f"must be an RFC 3339 time such as 2026-01-31T12:00:00Z, not {describe(value)}"
            )
        return round(moment.timestamp() * 1_000_000)

    def schema(self) -> dict[str, Any]:
        return _described({"type": "string", "format": "date-time"}, self.description)


def _described(schema: dict[str, Any], description: str) -> dict[str, Any]:
    if description:
        schema["description"] = description
    return schema
