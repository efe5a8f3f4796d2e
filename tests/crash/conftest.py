from tests.bus_fixture import throw_away_bus

__all__ = ["throw_away_bus"]
