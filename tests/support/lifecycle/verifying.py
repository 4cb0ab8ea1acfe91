"""The first judge: `shoal mirror verify`, as a command; and whether it agrees with the second."""

import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from support.lifecycle.cells import Outcome
from support.lifecycle.judging import Verdict

PATIENCE_S: Final = 120.0


class Compared(NamedTuple):
    """What `verify` says about a topic."""

    difference: str
    not_yet: int


def run_verify(source: str, target: str, topics: Iterable[str]) -> dict[str, Compared]:
    """By topic; nothing about those that it could not compare."""
    names = list(topics)
    if not names:
        return {}
    command = [sys.executable, "-m", "shoal", "mirror", "verify", "--output", "json"]
    command += ["--source-bootstrap-server", source, "--target-bootstrap-server", target]
    done = subprocess.run(
        [*command, "--topics", ",".join(names)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if done.returncode not in (0, 4, 5):
        raise RuntimeError(f"verify ended with {done.returncode}: {done.stderr[-500:]}")
    compared: dict[str, Compared] = {}
    for report in json.loads(done.stdout):
        topic = report["partition"]["topic"]
        before = compared.get(topic, Compared("", 0))
        difference = _text(report["difference"]) or before.difference
        compared[topic] = Compared(difference, before.not_yet + report["not_yet"])
    return compared


def _text(difference: dict[str, Any] | None) -> str:
    return "" if difference is None else str(difference["what"])


def reconcile(verdict: Verdict, compared: Compared | None, *, has_repeats: bool) -> Verdict:
    """The verdict, or `WRONG` where the judges disagree."""
    if compared is None:
        return verdict
    is_same = not compared.difference and not compared.not_yet
    if verdict.outcome is Outcome.COPIED and not is_same and not has_repeats:
        said = compared.difference or f"{compared.not_yet} not yet"
        return Verdict(Outcome.WRONG, f"copied, but verify says: {said}")
    if verdict.outcome in (Outcome.SILENT, Outcome.STUCK) and is_same:
        return Verdict(verdict.outcome, f"{verdict.detail}; verify finds no difference")
    has_too_many = verdict.outcome is Outcome.ANNOUNCED and not verdict.detail.startswith("0 ")
    if has_too_many and is_same:
        return Verdict(Outcome.WRONG, f"{verdict.detail}, but verify finds no difference")
    return verdict
