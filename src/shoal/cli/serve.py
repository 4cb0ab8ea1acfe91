"""`shoal serve`: the page of runs, clusters and mirrors."""

from pathlib import Path

import rich_click as click

from shoal.cli.shared import console
from shoal.cli.shared.browser import open_address
from shoal.cli.shared.options import runs_dir_option


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port on 127.0.0.1; 0 takes a free one.",
)
@click.option("--open", "is_opening", is_flag=True, help="Open the page in the browser.")
@click.option(
    "--allow-actions",
    is_flag=True,
    help="Let the page start and stop runs, and act on clusters and mirrors.",
)
@click.option(
    "--experiments",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder of experiment files that the page may start, besides the presets.",
)
@runs_dir_option
def serve(
    *,
    port: int,
    is_opening: bool,
    allow_actions: bool,
    experiments: Path | None,
    runs_dir: Path,
) -> None:
    """Serve a page of what runs now and of all runs, on this machine only.

    Each address that is printed opens the page in one browser; when it was used, the next one is
    printed. Ctrl-C ends it.

    \b
    shoal serve --open
    shoal serve --allow-actions --experiments my-experiments
    """
    from shoal.web.server import ServeSettings
    from shoal.web.server import serve as run_server

    printed: list[str] = []

    def show(address: str) -> None:
        is_first = not printed
        printed.append(address)
        text = address if is_first else f"for another browser: {address}"
        console.print_line(text)
        if is_first and is_opening and not open_address(address):
            console.say("no browser was found; open this address in one")

    run_server(ServeSettings(runs_dir.absolute(), port, allow_actions, experiments), show)
