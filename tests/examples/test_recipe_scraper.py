"""The recipe tool: its guard, and each branch of its work, against pages served on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from agentbus.encoding import decode_strict, encode
from agentbus.jobs import Event, Failed, JobEmitter, Succeeded, Warned, decode_event
from agentbus.jobs.running import run_job
from examples.recipe_scraper.__main__ import scrape
from examples.recipe_scraper.guard import BlockedAddressError, UrlGuard
from examples.recipe_scraper.messaging import EXIT_CODES, RecipeJob, ToolError, redact_recipe
from examples.recipe_scraper.recipe import FormattingError, format_recipe
from tests.bus_fixture import ROOT
from tests.jobs.servers import Answer, ScriptedServer, nats_server, redis_server

LOOPBACK = UrlGuard([ip_network("127.0.0.0/8")])
TOOL = [
    sys.executable,
    "-c",
    "import sys\n"
    "from ipaddress import ip_network\n"
    "from examples.recipe_scraper.__main__ import main\n"
    "from examples.recipe_scraper.guard import UrlGuard\n"
    "sys.exit(main(None, UrlGuard([ip_network('127.0.0.0/8')])))\n",
]
CAKE: dict[str, Any] = {
    "@context": "https://schema.org",
    "@type": "Recipe",
    "name": "Plum  cake",
    "recipeIngredient": ["500 g plums", "300 g flour"],
    "recipeInstructions": [
        {"@type": "HowToStep", "text": "Stone the plums."},
        {"@type": "HowToStep", "text": "Bake."},
    ],
    "recipeYield": "12",
    "totalTime": "PT1H5M",
    "image": "https://example.com/cake.jpg",
}


def page(recipe: dict[str, Any]) -> Answer:
    document = encode(recipe).decode()
    html = f'<html><head><script type="application/ld+json">{document}</script></head></html>'
    return Answer(200, {"content-type": "text/html; charset=utf-8"}, html.encode())


HTML = {"content-type": "text/html"}
PAGES = {
    "/cake": page(CAKE),
    "/no-yield": page({name: CAKE[name] for name in CAKE if name != "recipeYield"}),
    "/no-steps": page({name: CAKE[name] for name in CAKE if name != "recipeInstructions"}),
    "/odd-title": page(CAKE | {"name": 7}),
    "/odd-type": page(CAKE | {"@type": {}}),
    "/odd-context": page(CAKE | {"@context": None}),
    "/odd-ingredients": page(CAKE | {"recipeIngredient": {"x": 1}}),
    "/nothing": Answer(200, HTML, b"<html><body>A diary.</body></html>"),
    "/moved": Answer(301, {"location": "/cake"}),
    "/to-metadata": Answer(302, {"location": "http://169.254.169.254/latest/meta-data/"}),
    "/to-file": Answer(302, {"location": "file:///etc/passwd"}),
    "/to-private": Answer(302, {"location": "http://10.0.0.1/"}),
    "/to-nowhere": Answer(302, {"location": "http://[x/"}),
    "/loop": Answer(302, {"location": "/loop"}),
    "/gone": Answer(410),
    "/pdf": Answer(200, {"content-type": "application/pdf"}, b"%PDF"),
    "/endless": Answer(200, HTML, b"x" * (5 * 1024 * 1024)),
}


class KeepingSink:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def site() -> Iterator[ScriptedServer]:
    with ScriptedServer(Answer(404), pages=PAGES) as server:
        yield server


def scraped(*arguments: str, guard: UrlGuard = LOOPBACK) -> list[Event]:
    """The tool's work, in this process."""
    sink = KeepingSink()
    job: RecipeJob = JobEmitter(sink, "j", redactor=redact_recipe)
    try:
        scrape(arguments, job, guard)
    except ToolError as error:
        job.failed(error.code, str(error))
    return sink.events


def told(events: list[Event]) -> list[str]:
    """Types; a progress by its stage, a failure by its code."""
    return [getattr(event, "stage", getattr(event, "code", event.TYPE)) for event in events]


BRANCHES = {
    "/cake": ["accepted", "classify", "extract", "format", "succeeded"],
    "/moved": ["accepted", "classify", "extract", "format", "succeeded"],
    "/no-yield": ["accepted", "classify", "extract", "warning", "format", "succeeded"],
    "/no-steps": ["accepted", "classify", "extract", "warning", "format", "formatting"],
    "/nothing": ["accepted", "classify", "extract", "extraction"],
    "/missing": ["accepted", "classify", "extract", "extraction"],
    "/gone": ["accepted", "classify", "extract", "extraction"],
    "/pdf": ["accepted", "classify", "extract", "extraction"],
    "/endless": ["accepted", "classify", "extract", "extraction"],
    "/loop": ["accepted", "classify", "extract", "extraction"],
    "/photo.jpg": ["accepted", "classify", "extraction"],
    "/clip.mp4?x=1": ["accepted", "classify", "extraction"],
    "/to-metadata": ["accepted", "classify", "extract", "blocked_url"],
    "/to-private": ["accepted", "classify", "extract", "blocked_url"],
    "/to-nowhere": ["accepted", "classify", "extract", "blocked_url"],
    "/odd-title": ["accepted", "classify", "extract", "extraction"],
    "/odd-type": ["accepted", "classify", "extract", "extraction"],
    "/odd-context": ["accepted", "classify", "extract", "extraction"],
    "/odd-ingredients": [
        *("accepted", "classify", "extract", "warning", "format", "formatting"),
    ],
    "/to-file": ["accepted", "classify", "extract", "blocked_url"],
}


@pytest.mark.parametrize("path", BRANCHES)
def test_each_page_ends_as_it_should(site: ScriptedServer, path: str) -> None:
    assert told(scraped(site.url + path)) == BRANCHES[path]


def test_the_result_is_the_recipe_as_its_schema_has_it(site: ScriptedServer) -> None:
    end = scraped(site.url + "/moved")[-1]
    assert isinstance(end, Succeeded)
    assert end.result == {
        "title": "Plum cake",
        "source_url": site.url + "/cake",
        "ingredients": ["500 g plums", "300 g flour"],
        "steps": ["Stone the plums.", "Bake."],
        "yields": "12 servings",
        "total_minutes": 65,
        "image": "https://example.com/cake.jpg",
    }


def test_what_the_page_left_out_is_a_warning(site: ScriptedServer) -> None:
    warnings = [event for event in scraped(site.url + "/no-yield") if isinstance(event, Warned)]
    assert ["yields" in warning.message for warning in warnings] == [True]


@pytest.mark.parametrize("arguments", [(), ("",), ("http://a/", "http://b/")])
def test_without_exactly_one_url_it_is_a_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert told(scraped(*arguments)) == ["usage"]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "not a url",
        "http://user:pw@example.com/",
        "http:///path",
    ],
)
def test_a_url_that_is_no_web_address_is_blocked_before_any_work(url: str) -> None:
    assert told(scraped(url)) == ["accepted", "blocked_url"]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "[::1]",
        "[::]",
        "[fe80::1]",
        "[fc00::1]",
        "[ff02::1]",
        "[::ffff:10.0.0.1]",
        "[64:ff9b::a00:1]",
        "[2002:a00:1::1]",
        "localhost",
    ],
)
def test_an_address_inside_the_network_is_blocked_in_every_spelling(address: str) -> None:
    assert told(scraped(f"http://{address}/", guard=UrlGuard()))[-1] == "blocked_url"


def test_public_addresses_pass_and_the_allowance_is_for_tests_only() -> None:
    for public in ("93.184.216.34", "2606:2800:220:1::1"):
        UrlGuard().judge("example.com", ip_address(public))
    with pytest.raises(BlockedAddressError):
        UrlGuard().judge("example.com", ip_address("127.0.0.1"))
    LOOPBACK.judge("example.com", ip_address("127.0.0.1"))


def test_a_name_that_turns_inwards_between_redirects_is_blocked(
    site: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = socket.getaddrinfo, []

    def getaddrinfo(host: str, port: int, *more: Any, **kinds: Any) -> Any:
        if host != "turning.test":
            return real(host, port, *more, **kinds)
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "10.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    port = site.url.rsplit(":", 1)[1]
    assert told(scraped(f"http://turning.test:{port}/moved"))[-1] == "blocked_url"
    assert len(asked) == 2


def test_secrets_in_queries_are_redacted_and_the_rest_of_the_url_stays() -> None:
    shown = redact_recipe("see https://a.example/x?page=2&Token=abc&sig=d#top and sk-" + "a" * 20)
    assert shown == (
        "see https://a.example/x?page=2&Token=[REDACTED]&sig=[REDACTED]#top and [REDACTED]"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"title": ""},
        {"title": "x" * 501},
        {"steps": []},
        {"steps": ["", "  "]},
        {"ingredients": "flour"},
        {"total_minutes": "65"},
        {"total_minutes": 0},
        {"image": "javascript:x"},
        {"extra": 1},
    ],
)
def test_what_the_schema_refuses_is_no_recipe(changes: dict[str, Any]) -> None:
    fields = {"title": "t", "ingredients": ["i"], "steps": ["s"]}
    format_recipe("https://a/", fields)
    with pytest.raises(FormattingError):
        format_recipe("https://a/", fields | changes)


# --- as a process


def followed(sink: str, *arguments: str) -> tuple[list[Event], int]:
    events: list[Event] = []
    end = run_job(
        [*TOOL, *arguments],
        f"job-{uuid.uuid4()}",
        sink,
        show=lambda arrival: events.append(arrival.event),
        log=lambda line: None,
        prefix="RECIPE_",
    )
    assert isinstance(end.terminal, Failed) or end.status == 0
    assert not isinstance(end.terminal, Failed) or end.status == EXIT_CODES[end.terminal.code]
    return events, end.exit_code


@pytest.mark.parametrize("sink", ["events", "file", "callback", "nats", "redis"])
def test_over_each_transport_the_tool_says_the_same(
    site: ScriptedServer, sink: str, tmp_path: Path
) -> None:
    if sink in ("nats", "redis"):
        with {"nats": nats_server, "redis": redis_server}[sink]() as server:
            events, code = followed(server.url, site.url + "/no-yield")
    else:
        events, code = followed(sink, site.url + "/no-yield")
    assert told(events) == BRANCHES["/no-yield"]
    assert code == 0


@pytest.mark.parametrize(
    ("path", "code"), [("/to-private", 3), ("/nothing", 4), ("/no-steps", 5), ("/cake", 0)]
)
def test_the_exit_code_mirrors_the_terminal_event(
    site: ScriptedServer, path: str, code: int
) -> None:
    events, exit_code = followed("events", site.url + path)
    assert told(events) == BRANCHES[path]
    assert exit_code == code


@pytest.mark.parametrize(("path", "code"), [("/cake", 0), ("/nothing", 4)])
def test_by_default_the_recipe_alone_is_printed_or_why_there_is_none(
    site: ScriptedServer, path: str, code: int
) -> None:
    ran = subprocess.run(
        [*TOOL, site.url + path],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("RECIPE_")},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert ran.returncode == code, ran.stderr
    if code == 0:
        assert decode_strict(ran.stdout)["title"] == "Plum cake"
    else:
        assert ran.stdout == ""
        assert "recipe-scraper: no recipe on this page" in ran.stderr


def test_without_the_tests_allowance_the_tool_blocks_loopback(site: ScriptedServer) -> None:
    asked = len(site.got)
    ran = subprocess.run(
        [sys.executable, "-m", "examples.recipe_scraper", site.url + "/cake"],
        cwd=ROOT,
        env={**os.environ, "RECIPE_TRANSPORT": "events"},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert ran.returncode == 3
    assert told([decode_event(line) for line in ran.stdout.splitlines()])[-1] == "blocked_url"
    assert len(site.got) == asked


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"RECIPE_TRANSPORT": "pigeon"}, "RECIPE_TRANSPORT"),
        ({"RECIPE_TRANSPORT": "callback"}, "RECIPE_CALLBACK_URL"),
        ({"RECIPE_TRANSPORT": "callback", "RECIPE_CALLBACK_URL": "ftp://a/"}, "callback URL"),
    ],
)
def test_wrong_settings_are_refused_before_work_starts(
    site: ScriptedServer, variables: dict[str, str], named: str
) -> None:
    asked = len(site.got)
    ran = subprocess.run(
        [*TOOL, site.url + "/cake"],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert ran.returncode == 2
    assert named in ran.stderr
    assert len(site.got) == asked


def test_the_parents_example_goes_by_the_terminal_event(site: ScriptedServer) -> None:
    for path, line in (("/cake", "= Plum cake, 2 steps"), ("/nothing", "x extraction: ")):
        ran = subprocess.run(
            [sys.executable, "examples/parent_consumer.py", *TOOL, site.url + path],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=50,
        )
        assert ran.stdout.splitlines()[-1].startswith(line), ran.stderr
        assert ran.returncode == (0 if path == "/cake" else 1)


def test_the_parents_example_notices_a_tool_that_says_nothing() -> None:
    ran = subprocess.run(
        [sys.executable, "examples/parent_consumer.py", "true"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (ran.returncode, ran.stdout) == (1, "x lost: the tool has ended without a word\n")


def test_the_compose_file_is_what_the_schema_of_such_files_accepts() -> None:
    command = ["-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run(
        [sys.executable, *command, "examples/compose.yaml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
