"""`--metrics-port` and its companions, for every command that serves metrics."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from shoal.cli.shared.options import Command
from shoal.model.errors import UsageError

if TYPE_CHECKING:
    from shoal.telemetry.http_port import EndpointSpec


def metrics_options(command: Command) -> Command:
    """Add the options of a metrics endpoint."""
    options = (
        click.option(
            "--metrics-port",
            type=click.IntRange(0, 65535),
            help="Serve Prometheus metrics on this port; 0 for any free one.",
        ),
        click.option(
            "--metrics-host",
            default="127.0.0.1",
            show_default=True,
            help="Address on which metrics are served.",
        ),
        click.option(
            "--metrics-token-file",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="File with a token that readers of metrics must send.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def take_endpoint(options: dict[str, Any]) -> "EndpointSpec | None":
    """Remove the options of an endpoint from `options`; None if no port is given."""
    from shoal.telemetry.http_port import EndpointSpec, read_token

    port = options.pop("metrics_port")
    host = options.pop("metrics_host")
    token_file = options.pop("metrics_token_file")
    if port is None:
        if token_file is not None:
            raise UsageError(
                "--metrics-token-file without --metrics-port", remedy="give --metrics-port too"
            )
        return None
    if token_file is not None:
        read_token(str(token_file))  # refuse a bad file before anything starts
    return EndpointSpec(port, host, "" if token_file is None else str(token_file.absolute()))
