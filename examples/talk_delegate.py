"""One instance is served by a command, another one asks it over talk.

    python examples/talk_delegate.py                      # on your own bus
    AGENTBUS_RUNTIME_DIR=/tmp/try python examples/talk_delegate.py --config try.json

The configuration has to say who may talk: {"talk_peers": ["reviewer", "example-worker"]}.

The command is this file again. In its place would be a script that gives the prompt on its stdin to
a model, or to a linter, and prints what that says. Its exit code 11 means "over my own budget".
"""

import subprocess
import sys
from pathlib import Path

from agentbus.errors import BusError
from agentbus.talk import TalkClient, TalkError

WORKER = "example-worker"
EXIT_BUDGET_EXHAUSTED = 11
BUDGET_CHARACTERS = 200


def answer() -> None:
    """The worker: a question on stdin, its answer on stdout."""
    prompt = sys.stdin.read()
    if len(prompt) > BUDGET_CHARACTERS:
        print(f"{len(prompt)} characters are more than I can pay for", file=sys.stderr)
        sys.exit(EXIT_BUDGET_EXHAUSTED)
    print(f"{len(prompt.split())} words, all of them fine.")


def serve(options: list[str]) -> subprocess.Popen[str]:
    """Serve the worker; when this returns it can be asked."""
    agentbus = [sys.executable, "-m", "agentbus", "talk", "serve", "--instance", WORKER]
    command = ["--exec", "--", sys.executable, str(Path(__file__).resolve()), "answer"]
    process = subprocess.Popen([*agentbus, *options, *command], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = process.stdout.readline()
    if not told:
        raise SystemExit("the worker could not be served; see above")
    print(told.strip())
    return process


def main(options: list[str]) -> None:
    process = serve(options)
    try:
        config_path = Path(options[1]) if options[:1] == ["--config"] else None
        reviewer = TalkClient("reviewer", config_path=config_path)
        for prompt in ("Please verify this answer.", "Please verify this. " * 50):
            try:
                reply = reviewer.ask(WORKER, prompt)
                print(f"{reply.from_instance}: {reply.text.strip()}")
            except TalkError as error:
                again = "try again" if error.retryable else "it would be the same again"
                print(f"{error.code}: {error.message} ({again})")
    except BusError as error:
        raise SystemExit(error.message) from None
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    if sys.argv[1:] == ["answer"]:
        answer()
    else:
        main(sys.argv[1:])
