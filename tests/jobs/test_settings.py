"""The environment variables of a tool: names, defaults, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from agentbus.errors import ValidationError
from agentbus.jobs import Cancellation, JobSettings, job_settings, open_sink
from agentbus.jobs.settings import VARIABLES
from agentbus.jobs.sinks.callback import CallbackSink
from agentbus.jobs.sinks.file import FileSink
from tests.bus_fixture import ROOT


def test_the_defaults_of_the_recipe_tool_are_those_of_its_contract() -> None:
    settings = job_settings({}, "RECIPE_")
    assert uuid.UUID(settings.job_id)
    assert settings == JobSettings(
        transport="stdout",
        job_id=settings.job_id,
        events_path=Path("/tmp/recipe-events.ndjson"),
        callback_url=None,
        callback_secret=None,
        callback_allowed_hosts=(),
        callback_max_retries=3,
        broker_url=None,
        prefix="RECIPE_",
    )
    assert job_settings({}, "RECIPE_").job_id != settings.job_id


@pytest.mark.parametrize(
    ("prefix", "path"),
    [
        ("AGENTBUS_", "/tmp/agentbus-events.ndjson"),
        ("MY_TOOL_", "/tmp/my-tool-events.ndjson"),
        ("", "/tmp/job-events.ndjson"),
    ],
)
def test_the_default_file_is_named_after_the_prefix(prefix: str, path: str) -> None:
    assert job_settings({}, prefix).events_path == Path(path)


def test_every_variable_is_read_under_the_prefix() -> None:
    values = {
        "TRANSPORT": "callback",
        "JOB_ID": "cake",
        "EVENTS_PATH": "/x/events",
        "CALLBACK_URL": "http://parent/",
        "CALLBACK_SECRET": "s3cret",
        "CALLBACK_ALLOWED_HOSTS": " parent , other,,",
        "CALLBACK_MAX_RETRIES": "7",
        "BROKER_URL": "nats://broker",
    }
    assert values.keys() == VARIABLES.keys()
    settings = job_settings({f"X_{name}": value for name, value in values.items()}, "X_")
    assert settings == JobSettings(
        transport="callback",
        job_id="cake",
        events_path=Path("/x/events"),
        callback_url="http://parent/",
        callback_secret="s3cret",
        callback_allowed_hosts=("parent", "other"),
        callback_max_retries=7,
        broker_url="nats://broker",
        prefix="X_",
    )
    assert "s3cret" not in repr(settings)
    assert "broker'" not in repr(settings).replace("'broker'", "")
    assert job_settings({f"X_{name}": "" for name in values}, "X_").transport == "stdout"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRANSPORT", "nats"),
        ("TRANSPORT", "Events"),
        ("JOB_ID", "a/b"),
        ("JOB_ID", "x" * 125),
        ("CALLBACK_MAX_RETRIES", "0"),
        ("CALLBACK_MAX_RETRIES", "101"),
        ("CALLBACK_MAX_RETRIES", "3.0"),
        ("CALLBACK_MAX_RETRIES", "-1"),
        ("CALLBACK_MAX_RETRIES", "٣"),
        ("CALLBACK_MAX_RETRIES", "000000100999"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_variable(name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=f"X_{name}"):
        job_settings({f"X_{name}": value}, "X_")


@pytest.mark.parametrize(
    ("transport", "needed"), [("callback", "X_CALLBACK_URL"), ("broker", "X_BROKER_URL")]
)
def test_what_a_transport_needs_is_named(transport: str, needed: str) -> None:
    settings = job_settings({"X_TRANSPORT": transport}, "X_")
    with pytest.raises(ValidationError, match=needed):
        open_sink(settings, Cancellation())


@pytest.mark.parametrize(
    ("transport", "told", "named"),
    [
        ("callback", {"CALLBACK_URL": "ftp://h/"}, "X_CALLBACK_URL: "),
        (
            "callback",
            {"CALLBACK_URL": "http://h/", "CALLBACK_ALLOWED_HOSTS": "i"},
            "X_CALLBACK_URL, X_CALLBACK_ALLOWED_HOSTS: ",
        ),
        ("broker", {"BROKER_URL": "ftp://h/"}, "X_BROKER_URL: "),
        ("broker", {"BROKER_URL": "redis://h:port"}, "X_BROKER_URL: "),
        ("broker", {"BROKER_URL": "agentbus:", "CALLBACK_URL": "ftp://h/"}, "X_CALLBACK_URL: "),
    ],
)
def test_a_wrong_address_is_refused_with_the_name_of_its_variable(
    transport: str, told: dict[str, str], named: str
) -> None:
    environment = {f"X_{name}": value for name, value in told.items()}
    settings = job_settings({"X_TRANSPORT": transport, **environment}, "X_")
    with pytest.raises(ValidationError) as refused:
        open_sink(settings, Cancellation())
    assert refused.value.message.startswith(named)


def test_the_sink_is_the_one_that_was_named(tmp_path: Path) -> None:
    told = {"X_EVENTS_PATH": str(tmp_path / "e"), "X_CALLBACK_URL": "http://a/"}
    for transport, kind in (("file", FileSink), ("callback", CallbackSink)):
        settings = job_settings({**told, "X_TRANSPORT": transport}, "X_")
        sink = open_sink(settings, Cancellation())
        assert isinstance(sink, kind)
        sink.close()


def test_a_host_that_is_not_on_the_list_is_refused_before_work_starts() -> None:
    told = {
        "X_TRANSPORT": "callback",
        "X_CALLBACK_URL": "http://example.com.evil/",
        "X_CALLBACK_ALLOWED_HOSTS": "example.com",
    }
    with pytest.raises(ValidationError, match="allowed hosts"):
        open_sink(job_settings(told, "X_"), Cancellation())


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "AGENTBUS_TRANSPORT": "stdout"},
        capture_output=True,
        text=True,
        timeout=50,
    )


def test_a_tool_loads_only_what_its_transport_needs() -> None:
    ran = python(
        "import sys\n"
        "from agentbus.jobs import open_job\n"
        "with open_job() as job: job.failed('usage', 'x')\n"
        "heavy = {'nats', 'redis', 'boto3', 'httpcore2', 'starlette', 'uvicorn', 'rich', 'mcp'}\n"
        "sys.exit(str(heavy & sys.modules.keys()) if heavy & sys.modules.keys() else 0)\n"
    )
    assert ran.returncode == 0, ran.stderr


def test_a_broker_whose_package_is_missing_says_what_to_install() -> None:
    ran = python(
        "import sys; sys.modules['nats'] = None\n"
        "from agentbus.errors import UnavailableError\n"
        "from agentbus.jobs.brokers import open_transport\n"
        "try: open_transport('nats://127.0.0.1')\n"
        "except UnavailableError as error: print(error.message)\n"
    )
    assert "pip install 'agentbus-broker[nats]'" in ran.stdout, ran.stderr
