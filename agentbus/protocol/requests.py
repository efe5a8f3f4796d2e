"""From the parameters of a request to the frozen class that it is, strictly, by the class's checks.

Owns nothing but that step, for requests that name no attachment. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Protocol, TypeVar

from agentbus.errors import ValidationError
from agentbus.protocol.fields import Check

_ATTRIBUTES: Mapping[str, str] = {"from": "from_"}
"""Of parameters whose names are words of Python."""


class Parsed(Protocol):
    """A dataclass with its name on the wire, and a check for each parameter."""

    NAME: ClassVar[str]
    FIELDS: ClassVar[dict[str, Check]]
    __dataclass_fields__: ClassVar[dict[str, Any]]


R = TypeVar("R", bound=Parsed)


def parse_request(request: type[R], params: Any) -> R:
    """A null means the default. Raises ValidationError that names request and parameter."""
    name = request.NAME
    if not isinstance(params, dict):
        raise ValidationError(f"{name}: the parameters must be an object")
    values: dict[str, Any] = {}
    for key, value in params.items():
        check: Callable[[Any], Any] | None = request.FIELDS.get(key)
        if check is None:
            known = ", ".join(request.FIELDS)
            raise ValidationError(f"{name}: unknown parameter {key!r:.60}; known: {known}")
        if value is None:
            continue
        try:
            values[_ATTRIBUTES.get(key, key)] = check(value)
        except ValidationError as error:
            raise ValidationError(f"{name}: {key} {error.message}") from None
    for field in fields(request):
        if field.default is MISSING and field.name not in values:
            raise ValidationError(f"{name}: the parameter {field.name} is required")
    return request(**values)
