"""How a command ends badly: three short lines on stderr and an exit code. Tracebacks are for `--debug` only."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from flashnest.errors import FlashnestError

BUG = 1
USER_ERROR = 2
INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""
PIPE_CLOSED = 141
"""128 + SIGPIPE: the reader of our output went away, such as `| head`."""


def guarded(command: Callable[[], int], *, debug: bool) -> int:
    """Run `command` and return its exit code, or say on stderr why it failed and return that failure's code."""
    try:
        code = command()
        sys.stdout.flush()
        return code
    except FlashnestError as error:
        return show(error, debug=debug)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains once more at exit
        return PIPE_CLOSED
    except Exception as error:
        return show(error, debug=debug)


def show(error: Exception, *, debug: bool) -> int:
    """Print an error for people and return its exit code; a traceback before it where `debug` is set."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, FlashnestError):
        print(str(error) if error.has_heading else f"error: {error}", file=sys.stderr)
        return error.exit_code
    line = str(error).partition("\n")[0]
    print(f"internal error: {type(error).__name__}: {line}", file=sys.stderr)
    if not debug:
        print("this is a bug in flashnest; run again with --debug for the traceback", file=sys.stderr)
    return BUG
