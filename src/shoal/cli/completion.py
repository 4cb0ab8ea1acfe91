"""`shoal completion`: prints the script that lets a shell complete commands and their values."""

from typing import TYPE_CHECKING, Final

import rich_click as click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from shoal.cli.shared import console

if TYPE_CHECKING:
    from click.shell_completion import ShellComplete

# The name that click derives from the name of the program.
_VARIABLE: Final = "_SHOAL_COMPLETE"
_SHELLS: "Final[dict[str, type[ShellComplete]]]" = {
    "bash": BashComplete,
    "zsh": ZshComplete,
    "fish": FishComplete,
}


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)))
def completion(*, shell: str) -> None:
    """Complete commands, presets, runs, clusters and topics with the Tab key.

    \b
    eval "$(shoal completion bash)"              in ~/.bashrc
    eval "$(shoal completion zsh)"               in ~/.zshrc
    shoal completion fish | source               in ~/.config/fish/config.fish
    """
    from shoal.cli.main import main

    script = _SHELLS[shell](main, {}, "shoal", _VARIABLE)
    # Not `source()`, which starts a shell to check its version.
    text = script.source_template % script.source_vars()
    console.out.print(text, markup=False, emoji=False)
