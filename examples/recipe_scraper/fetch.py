"""One web page, through the guard."""

from __future__ import annotations

from typing import Final
from urllib.parse import urljoin

from agentbus.jobs import SinkError
from agentbus.jobs.http import exchange
from examples.recipe_scraper.guard import BlockedAddressError, UrlGuard
from examples.recipe_scraper.messaging import ToolError

PAGE_BYTES: Final = 4 * 1024 * 1024
REDIRECTS: Final = 5
TOTAL_S: Final = 30.0
"""For each of them."""

_HEADERS: Final = {"accept": "text/html,application/xhtml+xml", "user-agent": "recipe-scraper"}
_REDIRECTED: Final = frozenset((301, 302, 303, 307, 308))


def fetch(url: str, guard: UrlGuard) -> tuple[str, str]:
    """The page's text, and the URL it was found at after redirects.

    Raises ToolError: `blocked_url` or `extraction`.
    """
    for _ in range(REDIRECTS + 1):
        target = guard.check(url)
        try:
            with exchange("GET", target, guard.judge, headers=_HEADERS, total_s=TOTAL_S) as answer:
                if answer.status in _REDIRECTED and "location" in answer.headers:
                    url = _behind(url, answer.headers["location"])
                    continue
                if answer.status != 200:
                    raise ToolError("extraction", f"the page answered {answer.status}")
                kind = answer.headers.get("content-type", "text/html").lower()
                if "html" not in kind:
                    raise ToolError("extraction", f"the page is {kind}, not HTML")
                return answer.read(PAGE_BYTES).decode(_charset(kind), "replace"), url
        except BlockedAddressError as error:
            raise ToolError("blocked_url", error.message) from None
        except SinkError as error:
            raise ToolError("extraction", error.message) from None
    raise ToolError("extraction", f"more than {REDIRECTS} redirects")


def _behind(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise ToolError("blocked_url", f"the page leads to no URL: {error}") from None


def _charset(content_type: str) -> str:
    _, _, charset = content_type.partition("charset=")
    name = charset.split(";")[0].strip(" \"'")
    try:
        "".encode(name or "utf-8")
    except (LookupError, ValueError):
        return "utf-8"
    return name or "utf-8"
