"""The fixtures of tests/redis_fixture.py, for this folder."""

from tests.redis_fixture import redis_server

__all__ = ["redis_server"]
