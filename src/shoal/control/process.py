"""Answers one request of the page in a process of its own, which then ends.

The server of the page has no connection to any cluster: it writes a request as JSON to the
standard input of this process, and reads answers as lines of JSON. A tail has many answers; it ends
with the server's end of the pipe.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from shoal.control.actions import Action, act
from shoal.control.clusters import find_sides, open_cluster
from shoal.model.errors import ShoalError, UsageError
from shoal.model.topics import TopicPartition

Json = dict[str, Any]


def answer_request(request: Json) -> None:
    """Write the answers to one request."""
    runs_dir = Path(str(request.get("runs_dir")))
    match request:
        case {"action": dict(wanted)}:
            _write(act(_read_action(wanted), runs_dir))
        case {"tail": str(topic), "thing": str(thing)}:
            # Records need the client, which takes longer to load than an action takes.
            asyncio.run(_tail(open_cluster(thing, runs_dir).bootstrap, topic))
        case {"sides": {"source": str(source), "target": str(target), "at": [int(a), int(b)]}}:
            addresses = find_sides(str(request.get("thing")), runs_dir)
            route = (_read_partition(source), _read_partition(target))
            from shoal.control.records import compare_sides

            _write(asyncio.run(compare_sides(*addresses, route, (a, b))))
        case _:
            raise UsageError("not a request of the page")


def _read_action(wanted: Json) -> Action:
    thing, action = wanted.get("thing"), wanted.get("action")
    node, other = wanted.get("node"), wanted.get("other")
    settings = wanted.get("settings", {})
    unknown = set(wanted) - {"thing", "action", "node", "other", "settings"}
    numbers_are_valid = all(each is None or type(each) is int for each in (node, other))
    if (
        unknown
        or not isinstance(thing, str)
        or not isinstance(action, str)
        or not isinstance(settings, dict)
        or not numbers_are_valid
    ):
        raise UsageError("an action has thing, action and, for a cluster, node, other and settings")
    return Action(str(thing), str(action), node, other, settings)


def _read_partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    if not topic or not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise UsageError(f"{text:.80} is not a partition")
    return TopicPartition(topic, int(number))


async def _tail(bootstrap: str, topic: str) -> None:
    from shoal.control.records import follow_topic

    async for found in follow_topic(bootstrap, topic):
        _write(found)


def _write(answer: Json) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    try:
        answer_request(json.load(sys.stdin))
    except ShoalError as error:
        _write({"error": error.message, "remedy": error.remedy})
    except TimeoutError:
        _write({"error": "the cluster does not answer", "remedy": "look whether it runs"})
    except BrokenPipeError:
        pass


if __name__ == "__main__":
    main()
