"""Start of the ``fedexp`` command; in a terminal it prints a line before the slow imports."""

import sys

import fedexp
from fedexp.cli.pipes import quiet_in_a_pipe

_SILENT = {"-h", "-c", "-i", "-sc", "--help", "--hydra-help", "--cfg", "--info", "--version"}
"""With one of these flags, the command prints only the flag's output."""


@quiet_in_a_pipe()
def main() -> None:
    """The ``fedexp`` command."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(f"fedexp {fedexp.__version__}")
        return
    if sys.stderr.isatty() and _SILENT.isdisjoint(each.partition("=")[0] for each in arguments):
        print("fedexp: reading the config", file=sys.stderr, flush=True)
    from fedexp.train import main as command

    command()


if __name__ == "__main__":
    main()
