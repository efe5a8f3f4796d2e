"""The private Redis process: what starts, what does not, and what is never touched."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from agentbus.ids import BusId, Sequence
from agentbus.limits import MIB
from agentbus.processes import is_running, start_mark
from agentbus.projection.connection import connect, dataset_bytes, execute
from agentbus.projection.errors import ProjectionError, RedisUnusableError
from agentbus.projection.finding import DEFAULT_EXECUTABLE, find_redis
from agentbus.projection.launching import RedisSettings
from agentbus.projection.rebuild import Rebuild, UpToDate, needs
from agentbus.projection.server import RedisServer
from agentbus.projection.streams import StreamWriter
from tests.eventually import PATIENCE_S
from tests.redis_fixture import (
    BUS_ID,
    PrivateRedis,
    executable_script,
    foreign_redis,
    need_search,
    private_redis,
    redis_settings,
    set_mark,
)
from tests.signals import freeze, kill

REAL = str(find_redis(DEFAULT_EXECUTABLE)[-1].executable)


def without_modules(folder: Path) -> Path:
    """A Redis that cannot load modules, as old ones cannot load the current module."""
    return executable_script(
        folder,
        f'for argument; do [ "$argument" = --loadmodule ] && exit 1; done\nexec {REAL} "$@"',
    )


def crash_daemon_with_redis(settings: RedisSettings, *, mark: BusId | None) -> int:
    """A process starts the Redis, perhaps marks it, and kills itself: the pid of the orphan."""
    script = (
        "import os, signal\n"
        "from pathlib import Path, PosixPath\n"
        "from agentbus.projection.launching import RedisSettings\n"
        "from agentbus.projection.server import RedisServer\n"
        "from agentbus.projection.streams import StreamWriter\n"
        "from tests.redis_fixture import set_mark\n"
        f"server = RedisServer({settings!r})\n"
        "print(server.start('bus').pid, flush=True)\n"
        f"mark = {mark!r}\n"
        "if mark: set_mark(StreamWriter(server.connect(), search=False), mark, 5)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    return int(ended.stdout)


def test_a_started_redis_is_private_bounded_and_described(redis_server: PrivateRedis) -> None:
    settings, info = redis_server.settings, redis_server.info
    assert redis_server.server.alive()
    redis_server.server.ping()
    assert settings.socket_path.stat().st_mode & 0o777 == 0o600
    config = redis_server.client.config_get("*")
    assert config["port"] == "0"
    assert config["maxmemory"] == str((64 + 64) * MIB)
    assert config["maxmemory-policy"] == "noeviction"
    assert config["save"] == ""
    assert config["appendonly"] == "no"
    assert info.engine in ("redis", "valkey")
    assert info.version[0].isdigit()
    assert not info.taken_over
    assert redis_server.client.dbsize() == 0, "the probe left something behind"
    record = json.loads(settings.record_path.read_bytes())
    assert is_running(record["pid"], record["mark"])


def test_a_loaded_module_has_no_hidden_limits(redis_server: PrivateRedis) -> None:
    need_search()
    limits = execute(redis_server.client, "FT.CONFIG", "GET", "*")
    assert limits[b"MAXEXPANSIONS"] == b"1000000"
    assert limits[b"MINPREFIX"] == b"1"
    assert limits[b"ON_TIMEOUT"] == b"fail"


def test_stopping_ends_the_process_and_leaves_no_files() -> None:
    with private_redis() as running:
        mark = start_mark(running.info.pid)
        assert mark is not None
        running.server.stop()
        assert not is_running(running.info.pid, mark)
        assert not running.server.alive()
        assert list(running.settings.runtime_directory.iterdir()) == []
        running.server.stop()


def test_a_hung_redis_is_stopped_by_force() -> None:
    with private_redis() as running:
        freeze(running.info.pid)
        started_s = time.monotonic()
        running.server.stop(grace_s=0.1)
        assert time.monotonic() - started_s < PATIENCE_S


@pytest.mark.parametrize("strike", [kill, freeze])
def test_a_dead_or_hung_redis_is_restarted_empty(strike: Callable[[int], None]) -> None:
    with private_redis(command_s=1.0) as running:
        set_mark(StreamWriter(running.client, search=False), BUS_ID, Sequence(3))
        strike(running.info.pid)
        assert running.server.alive() == (strike is freeze)
        with pytest.raises(ProjectionError):
            running.server.ping()
        again = running.server.restart(BUS_ID)
        assert again.pid != running.info.pid
        with closing(running.server.connect()) as client:
            assert isinstance(
                needs(client, BUS_ID, Sequence(3), Sequence(0), search=False), Rebuild
            )


def test_an_executable_that_exits_at_once_is_explained_with_its_output(tmp_path: Path) -> None:
    fake = executable_script(tmp_path, "echo 'libssl.so.1.1: not found' >&2; exit 127")
    with redis_settings(executable=str(fake)) as settings:
        with pytest.raises(RedisUnusableError, match=r"code 127 .*libssl.*pip install"):
            RedisServer(settings).start(BUS_ID)
        assert not settings.socket_path.exists()


def test_an_executable_that_cannot_be_run_is_explained(tmp_path: Path) -> None:
    fake = tmp_path / "redis"
    fake.write_bytes(b"\x7fELF broken")
    fake.chmod(0o755)
    with (
        redis_settings(executable=str(fake)) as settings,
        pytest.raises(RedisUnusableError, match="cannot be run"),
    ):
        RedisServer(settings).start(BUS_ID)


def test_an_executable_that_hangs_is_given_up_and_ended(tmp_path: Path) -> None:
    fake = executable_script(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    with redis_settings(executable=str(fake), start_s=2.0, search_engine="sqlite") as settings:
        with pytest.raises(RedisUnusableError, match=r"serves no Redis after 2 s"):
            RedisServer(settings).start(BUS_ID)
        assert start_mark(int((tmp_path / "pid").read_text())) is None


def test_auto_does_without_search_and_says_why(tmp_path: Path) -> None:
    with private_redis(executable=str(without_modules(tmp_path))) as running:
        assert not running.info.search
        assert "pip install" in str(running.info.search_missing)


def test_redis_refuses_to_start_without_search(tmp_path: Path) -> None:
    fake = without_modules(tmp_path)
    with redis_settings(executable=str(fake), search_engine="redis") as settings:
        with pytest.raises(RedisUnusableError, match=r"no text search.*pip install"):
            RedisServer(settings).start(BUS_ID)
        assert not settings.socket_path.exists()


def test_sqlite_loads_no_module() -> None:
    with private_redis(search_engine="sqlite") as running:
        modules = [module[b"name"] for module in execute(running.client, "MODULE", "LIST")]
        assert b"search" not in modules
        assert not running.info.search
        assert running.info.search_missing == 'not looked for, because search_engine is "sqlite"'


def test_a_built_in_module_is_used_with_our_limits(tmp_path: Path) -> None:
    need_search()
    module = find_redis(DEFAULT_EXECUTABLE)[-1].module
    fake = executable_script(tmp_path, f'exec {REAL} "$@" --loadmodule {module}')
    with private_redis(executable=str(fake)) as running:
        assert running.info.search_module == "built in"
        limits = execute(running.client, "FT.CONFIG", "GET", "*")
        assert limits[b"MAXEXPANSIONS"] == b"1000000"


def test_a_later_candidate_with_search_is_preferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_search()
    without_modules(tmp_path).rename(tmp_path / "redis-server")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with private_redis() as running:
        assert running.info.search
        assert running.info.executable != str(tmp_path / "redis-server")
    with private_redis(search_engine="sqlite") as running:
        assert running.info.executable == str(tmp_path / "redis-server")


def test_damaged_dumps_and_logs_of_writes_are_ignored() -> None:
    with redis_settings() as settings:
        settings.working_directory.mkdir(parents=True)
        folder = settings.working_directory
        (folder / "dump.rdb").write_bytes(b"REDIS0011\xff torn")
        (folder / "appendonly.aof").write_bytes(b"*2\r\n$6\r\nSELE")
        (folder / "appendonlydir").mkdir()
        (folder / "appendonlydir" / "appendonly.aof.manifest").write_bytes(b"file torn seq")
        (folder / "appendonlydir" / "torn.base.rdb").write_bytes(b"REDIS0011\xff")
        server = RedisServer(settings)
        server.start(BUS_ID)
        with closing(server.connect()) as client:
            assert client.dbsize() == 0
        server.stop()


def test_a_foreign_redis_on_the_path_is_refused_and_left_alone() -> None:
    with (
        redis_settings() as settings,
        foreign_redis(settings.socket_path, settings.runtime_directory) as client,
    ):
        client.set("precious", "data")
        server = RedisServer(settings)
        with pytest.raises(RedisUnusableError, match="left alone"):
            server.start(BUS_ID)
        server.stop()
        assert client.get("precious") == b"data"
        client.config_set("requirepass", "secret")
        with pytest.raises(RedisUnusableError, match="left alone"):
            server.start(BUS_ID)
        assert settings.socket_path.exists()


def test_a_client_that_connects_anew_never_talks_to_a_foreign_redis() -> None:
    with private_redis() as ours:
        assert ours.client.ping()
        kill(ours.info.pid)
        ours.settings.socket_path.unlink()
        with foreign_redis(ours.settings.socket_path, ours.settings.runtime_directory) as foreign:
            for _ in range(2):
                with pytest.raises(redis.ConnectionError, match="another Redis"):
                    ours.client.set("k", "of the bus")
                with pytest.raises(ProjectionError, match="another Redis"):
                    ours.server.ping()
            assert foreign.keys() == []


def test_a_foreign_listener_that_answers_nothing_is_refused_in_bounded_time() -> None:
    with redis_settings(command_s=0.2) as settings, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(settings.socket_path))
        listener.listen()
        started_s = time.monotonic()
        with pytest.raises(RedisUnusableError, match="does not answer"):
            RedisServer(settings).start(BUS_ID)
        assert time.monotonic() - started_s < PATIENCE_S
        assert settings.socket_path.exists()


def test_a_file_in_the_way_is_named_and_kept() -> None:
    with redis_settings() as settings:
        settings.socket_path.write_text("notes")
        with pytest.raises(RedisUnusableError, match="not a socket"):
            RedisServer(settings).start(BUS_ID)
        assert settings.socket_path.read_text() == "notes"


def test_a_stale_socket_is_replaced() -> None:
    with redis_settings() as settings:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(settings.socket_path))
        server = RedisServer(settings)
        assert not server.start(BUS_ID).taken_over
        server.stop()


def test_an_orphan_with_our_bus_is_taken_over() -> None:
    with redis_settings() as settings:
        orphan = crash_daemon_with_redis(settings, mark=BUS_ID)
        server = RedisServer(settings)
        info = server.start(BUS_ID)
        assert (info.pid, info.taken_over) == (orphan, True)
        assert server.alive()
        with closing(server.connect()) as client:
            assert needs(client, BUS_ID, Sequence(5), Sequence(0), search=False) == UpToDate()
        server.stop()
        assert start_mark(orphan) is None
        assert not server.alive()


@pytest.mark.parametrize("mark", [None, BusId("another")])
def test_an_orphan_with_another_bus_or_none_is_ended(mark: BusId | None) -> None:
    with redis_settings() as settings:
        orphan = crash_daemon_with_redis(settings, mark=mark)
        server = RedisServer(settings)
        info = server.start(BUS_ID)
        assert not info.taken_over
        assert start_mark(orphan) is None
        server.stop()


def test_an_orphan_started_with_other_settings_is_ended() -> None:
    with redis_settings() as settings:
        orphan = crash_daemon_with_redis(settings, mark=BUS_ID)
        server = RedisServer(replace(settings, search_engine="sqlite"))
        assert not server.start(BUS_ID).taken_over
        assert start_mark(orphan) is None
        server.stop()


def test_a_hung_orphan_is_ended() -> None:
    with redis_settings(command_s=1.0) as settings:
        orphan = crash_daemon_with_redis(settings, mark=BUS_ID)
        freeze(orphan)
        server = RedisServer(settings)
        assert server.start(BUS_ID).pid != orphan
        assert start_mark(orphan) is None
        server.stop()


def test_an_orphan_whose_pid_was_never_noted_is_still_ours() -> None:
    with redis_settings() as settings:
        orphan = crash_daemon_with_redis(settings, mark=BUS_ID)
        record = json.loads(settings.record_path.read_bytes())
        record.update(pid=None, mark=None, facts=None)
        settings.record_path.write_text(json.dumps(record))
        server = RedisServer(settings)
        assert not server.start(BUS_ID).taken_over
        assert start_mark(orphan) is None
        server.stop()


def test_a_record_of_a_reused_pid_ends_nobody() -> None:
    with redis_settings() as settings, subprocess.Popen(["sleep", "60"]) as bystander:
        orphan = crash_daemon_with_redis(settings, mark=BUS_ID)
        kill(orphan)
        record = json.loads(settings.record_path.read_bytes())
        record["pid"] = bystander.pid
        settings.record_path.write_text(json.dumps(record))
        server = RedisServer(settings)
        server.start(BUS_ID)
        assert bystander.poll() is None
        bystander.kill()
        server.stop()


def test_buffers_of_clients_do_not_make_an_empty_redis_look_full() -> None:
    with private_redis() as redis:
        redis.client.config_set("hz", 100)  # it counts buffers more often, and so wrong more often
        for _ in range(50):  # about every second time (measured)
            with closing(connect(redis.server.socket_path)) as other:
                other.echo(b"x" * (4 * MIB))
                assert dataset_bytes(redis.client) < redis.settings.budget_bytes
