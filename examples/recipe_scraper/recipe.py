"""The result: a recipe that its schema accepts."""

from __future__ import annotations

from typing import Any, Final, NotRequired, TypedDict

from jsonschema import Draft202012Validator


class Recipe(TypedDict):
    """What the job succeeds with."""

    title: str
    source_url: str
    ingredients: list[str]
    steps: list[str]
    yields: NotRequired[str]
    total_minutes: NotRequired[int]
    image: NotRequired[str]


_TEXTS: Final = {
    "type": "array",
    "minItems": 1,
    "maxItems": 500,
    "items": {"type": "string", "minLength": 1, "maxLength": 5000},
}
SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "additionalProperties": False,
    "required": ["title", "source_url", "ingredients", "steps"],
    "properties": {
        "title": {"type": "string", "minLength": 1, "maxLength": 500},
        "source_url": {"type": "string", "pattern": "^https?://"},
        "ingredients": _TEXTS,
        "steps": _TEXTS,
        "yields": {"type": "string", "minLength": 1, "maxLength": 200},
        "total_minutes": {"type": "integer", "minimum": 1, "maximum": 100_000},
        "image": {"type": "string", "pattern": "^https?://"},
    },
}
_SCHEMA: Final = Draft202012Validator(SCHEMA)


class FormattingError(ValueError):
    """What the page gave makes no recipe."""


def format_recipe(source_url: str, fields: dict[str, Any]) -> Recipe:
    """Tidy texts, then hold them against the schema. Raises FormattingError."""
    recipe: dict[str, Any] = {"source_url": source_url}
    for name, value in fields.items():
        recipe[name] = _tidy(value)
    problems = sorted(_SCHEMA.iter_errors(recipe), key=lambda problem: problem.json_path)
    if problems:
        said = "; ".join(f"{problem.json_path}: {problem.message}" for problem in problems[:5])
        raise FormattingError(f"this makes no recipe: {said}")
    return recipe  # type: ignore[return-value]  # what the schema says


def _tidy(value: Any) -> Any:
    """One blank between words; no empty lines."""
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, list):
        return [text for item in value if (text := _tidy(item))]
    return value
