"""`shoal ready`: whether one broker or controller is caught up, for probes and for people."""

import asyncio
import time

import rich_click as click

from shoal.cli.shared import console
from shoal.model.errors import ClientError, UnreachableError
from shoal.model.exit_codes import ExitCode

_POLL_S = 0.5


@click.command()
@click.argument("address", metavar="HOST:PORT")
@click.option("--id", "node_id", type=click.IntRange(0), required=True, help="Id of the node.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0),
    default=0.0,
    help="Seconds to wait until it is ready.  [default: ask once]",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1),
    default=8.0,
    show_default=True,
    help="Seconds to wait for each answer.",
)
def ready(*, address: str, node_id: int, wait_s: float, timeout_s: float) -> ExitCode:
    """Check whether a broker or controller is caught up; the exit code is 0 if it is.

    A broker is ready when it has the whole metadata log, is not fenced, and is in sync for all its
    replicas; a controller when it leads the quorum or has the whole log. Exit code 1: not yet;
    3: it does not answer.

    \b
    shoal ready --id 1 127.0.0.1:9092
    shoal ready --id 101 127.0.0.1:9093 --wait 60
    """
    from shoal.systems.readiness import Readiness, check_node

    deadline = time.monotonic() + wait_s
    while True:
        answer: Readiness | ClientError
        try:
            answer = asyncio.run(check_node(address, node_id, timeout_s=timeout_s))
        except ClientError as error:
            answer = error
        if isinstance(answer, Readiness) and answer.is_ready:
            console.say(answer.sentence, "green")
            return ExitCode.PROVEN
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_S)
    if isinstance(answer, ClientError):
        raise UnreachableError(
            f"node {node_id} at {address} does not answer: {answer}",
            remedy="check that it runs and listens there",
        )
    console.say(f"not ready: {answer.sentence}", "yellow")
    return ExitCode.UNEXPECTED
