"""What a page says about its recipe, by the library `recipe-scrapers`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final, Literal, TypeAlias

from agentbus.jobs.http import Target
from examples.recipe_scraper.messaging import ToolError

Kind: TypeAlias = Literal["web", "image", "video"]

_SUFFIXES: Final[dict[str, Kind]] = {
    **dict.fromkeys((".jpg", ".jpeg", ".png", ".webp", ".gif"), "image"),
    **dict.fromkeys((".mp4", ".webm", ".mov", ".mkv"), "video"),
}


@dataclass(slots=True)
class Extracted:
    """As the page has it, unchecked; `warnings` say what it left out."""

    url: str
    fields: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def classify(target: Target) -> Kind:
    """What is behind an address, by its path."""
    return _SUFFIXES.get(PurePosixPath(target.path.partition("?")[0]).suffix.lower(), "web")


def extract(html: str, url: str) -> Extracted:
    """Raises ToolError `extraction` for a page that has no recipe."""
    from recipe_scrapers import scrape_html  # a second of imports, so only when there is a page

    try:
        page = scrape_html(html, org_url=url, supported_only=False)
        title = page.title()
    except Exception as error:  # whatever a page of strangers makes the library stumble over
        raise ToolError("extraction", f"no recipe on this page: {_said(error)}") from None
    found = Extracted(url, {"title": title})
    readers: dict[str, Callable[[], Any]] = {
        "ingredients": page.ingredients,
        "steps": page.instructions_list,
        "yields": page.yields,
        "total_minutes": page.total_time,
        "image": page.image,
    }
    for name, read in readers.items():
        try:
            value = read()
        except Exception as error:
            found.warnings.append(f"the page gives no {name}: {_said(error)}")
            continue
        if value not in (None, "", []):
            found.fields[name] = value
        else:
            found.warnings.append(f"the page gives no {name}")
    return found


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
