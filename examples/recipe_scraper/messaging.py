"""The tool's own words on top of the library: stages, codes, exit codes, result, redaction."""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

from agentbus.jobs import JobEmitter, open_job, redact
from examples.recipe_scraper.recipe import Recipe

PREFIX: Final = "RECIPE_"
"""Of every environment variable: RECIPE_TRANSPORT, RECIPE_JOB_ID, ..."""

Stage: TypeAlias = Literal["classify", "extract", "transcribe", "format"]
Code: TypeAlias = Literal["usage", "blocked_url", "extraction", "formatting", "general"]
RecipeJob: TypeAlias = JobEmitter[Recipe, Stage, Code]

EXIT_CODES: Final[dict[Code, int]] = {
    "general": 1,
    "usage": 2,
    "blocked_url": 3,
    "extraction": 4,
    "formatting": 5,
}

_IN_QUERIES: Final = re.compile(
    r"(?i)([?&](?:access_token|api_?key|auth|key|password|session(?:_?id)?|sig(?:nature)?|token)=)"
    r"[^&#\s\"'<>]+"
)


class ToolError(Exception):
    """Ends the job with a code of ours."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code


def open_recipe_job() -> RecipeJob:
    """The job that this process is, as its environment says."""
    return open_job(PREFIX, redactor=redact_recipe)


def redact_recipe(text: str) -> str:
    """What the library redacts, and what queries of URLs carry under telling names."""
    return _IN_QUERIES.sub(r"\1[REDACTED]", redact(text))
