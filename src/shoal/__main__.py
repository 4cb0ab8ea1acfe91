"""`shoal` and `python -m shoal`: the entry point, which imports the command line.

Loading takes part of a second. Ctrl-C in that time ends like Ctrl-C later: one message, code 105.
"""

import sys

_INTERRUPTED = 105  # ExitCode.INTERRUPTED, which is not imported yet


def run() -> None:
    """Run the command line of the `shoal` script, and exit."""
    try:
        from shoal.cli.main import execute

        code = execute(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = _INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    run()
