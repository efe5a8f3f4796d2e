"""A program between a harness and its MCP server that writes down what the harness sends.

    python wire_recorder.py [--refuse-discover] FILE COMMAND...

With `--refuse-discover` it answers `server/discover` as a server that knows only the older era of
the protocol does. Only what the harness sends is looked at; what the server says goes out directly.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys


def main(arguments: list[str]) -> int:
    refuses = arguments[0] == "--refuse-discover"
    file, *command = arguments[refuses:]
    server = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert server.stdin is not None
    with open(file, "ab", buffering=0) as log:
        for line in sys.stdin.buffer:
            log.write(line)
            message = json.loads(line)
            if refuses and message.get("method") == "server/discover":
                error = {"code": -32601, "message": "Method not found"}
                answer = {"jsonrpc": "2.0", "id": message["id"], "error": error}
                os.write(1, json.dumps(answer).encode() + b"\n")
                continue
            server.stdin.write(line)
            server.stdin.flush()
    server.stdin.close()
    return server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
