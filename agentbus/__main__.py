"""`python -m agentbus`: the same as the command `agentbus`."""

from __future__ import annotations

import sys

from agentbus.cli.bus import main

if __name__ == "__main__":
    sys.exit(main())
