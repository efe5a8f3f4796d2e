"""The tool: one URL in, one stream of events out.

Its exit code mirrors the terminal event, for parents that look at nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from agentbus.errors import BusError
from agentbus.jobs import JobCancelledError
from examples.recipe_scraper.extract import classify, extract
from examples.recipe_scraper.fetch import fetch
from examples.recipe_scraper.guard import UrlGuard
from examples.recipe_scraper.messaging import EXIT_CODES, RecipeJob, ToolError, open_recipe_job
from examples.recipe_scraper.recipe import FormattingError, format_recipe


def main(argv: Sequence[str] | None = None, guard: UrlGuard | None = None) -> int:
    """Run one job; its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        with open_recipe_job() as job:
            try:
                scrape(arguments, job, guard or UrlGuard())
            except ToolError as error:
                failed = job.failed(error.code, str(error))
                # By default nothing but a recipe is on stdout, so a person would see nothing.
                print(f"recipe-scraper: {failed.message}", file=sys.stderr)
                return EXIT_CODES[error.code]
        return 0
    except JobCancelledError:
        return EXIT_CODES["general"]
    except BusError as error:  # the settings are wrong, or nobody could be told
        print(f"recipe-scraper: {error.message}", file=sys.stderr)
        return EXIT_CODES["usage" if error.code == "validation" else "general"]


def scrape(arguments: Sequence[str], job: RecipeJob, guard: UrlGuard) -> None:
    """Everything up to the success. Raises ToolError."""
    if len(arguments) != 1 or not arguments[0]:
        raise ToolError("usage", "give exactly one URL")
    (url,) = arguments
    job.accepted(url)
    target = guard.check(url)

    job.progress("classify")
    kind = classify(target)
    if kind != "web":
        raise ToolError("extraction", f"this example reads web pages, not a {kind}")

    job.cancellation.check()
    job.progress("extract", message=f"a page of {target.host}")
    html, found_at = fetch(url, guard)
    extracted = extract(html, found_at)
    for warning in extracted.warnings:
        job.warning(warning)

    job.cancellation.check()
    job.progress("format")
    try:
        recipe = format_recipe(found_at, extracted.fields)
    except FormattingError as error:
        raise ToolError("formatting", str(error)) from None
    job.succeeded(recipe)


if __name__ == "__main__":
    sys.exit(main())
