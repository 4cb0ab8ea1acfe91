"""The history format, sentence by sentence: meaning, tolerated and malformed lines."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from shoal.audit.history.verdict import judge_history
from shoal.model.errors import UsageError
from support.audit.history_files import (
    DRAINED,
    assign,
    counts,
    flat,
    judge_folder,
    log,
    position,
    read_in_blocks,
    receive,
    run,
    scan,
    send,
    write,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "history-format.md"


@pytest.fixture(autouse=True, params=["lines", "blocks"])
def way_of_reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "blocks":
        read_in_blocks(monkeypatch, 300)


OKS = [send(0), send(1), send(2)]


def test_the_example_of_the_document(tmp_path: Path) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.startswith('    {"kind"')]
    judged_result = judge_folder(tmp_path, [json.loads(line) for line in lines])
    assert judged_result["verdict"] == "violated"
    assert judged_result["findings"] == {"lost: unlocated": {"count": 1}, "tail loss": {"count": 1}}
    plain: dict[str, Any] = {
        "attempts": 3,
        "ok": 2,
        "failed": 0,
        "unknown": 1,
        "deliveries": 1,
        "delivered": 1,
    }
    plain |= {"re_reads": 0, "recovered": 0, "F": 0, "K": 0, "yield": 2 / 3, "harvest": 1 / 3}
    plain |= {"completeness": 0.5, "duplication": 0.0}
    plain["range_us"] = {"sent": 2000, "published": 1900, "output": None, "consumed": 0}
    assert {name: judged_result["metrics"][name] for name in plain} == plain
    latency = judged_result["metrics"]["latency_us"]
    shown = {"count": 1, "negative": 0, "mean": 5000.0, "p50": 5000, "max": 5000}
    assert {name: latency["e2e_intended"][name] for name in shown} == shown
    assert latency["producer"]["count"] == 2


@pytest.mark.parametrize("lines", [[], [run()], [DRAINED], [send(0, "unknown"), DRAINED]])
def test_a_run_without_acknowledgements_proves_nothing(lines: list[Any], tmp_path: Path) -> None:
    assert judge_folder(tmp_path, lines)["verdict"] == "inconclusive"


def test_fields_that_nobody_knows_and_nulls_are_ignored(tmp_path: Path) -> None:
    odd: dict[str, Any] = {"colour": [1, {"deep": None}], "key": None, "txn": None, "fate": None}
    judged_result = judge_folder(
        tmp_path, run(format=None, acks=None), send(0, **odd), receive(0), DRAINED
    )
    assert judged_result["verdict"] == "proven"


def test_times_are_since_any_zero(tmp_path: Path) -> None:
    sent = send(0, sent_us=-1, intended_us=-8, acked_us=-1)
    judged_result = judge_folder(tmp_path, sent, receive(0, received_us=-4), DRAINED)["metrics"]
    assert judged_result["latency_us"]["e2e_intended"]["max"] == 4
    assert (
        judged_result["latency_us"]["e2e_actual"] | {"max": -3, "negative": 1}
        == judged_result["latency_us"]["e2e_actual"]
    )
    assert judged_result["latency_us"]["producer"]["max"] == 0


def test_without_a_manifest_sends_are_all_attempts(tmp_path: Path) -> None:
    assert judge_folder(tmp_path, OKS, receive(0, 1, 2))["metrics"]["attempts"] == 3


def test_a_number_below_the_count_without_a_send_is_unknown(tmp_path: Path) -> None:
    manifest = {"kind": "manifest", "producer": "p1", "topic": "t", "partition": 0, "count": 5}
    judged_result = judge_folder(tmp_path, OKS, manifest, receive(0, 1, 2, 4), DRAINED)
    assert counts(judged_result) == {}
    assert (judged_result["metrics"]["attempts"], judged_result["metrics"]["unknown"]) == (5, 2)
    assert judged_result["metrics"]["recovered"] == 1
    assert counts(judge_folder(tmp_path, OKS, manifest, receive(0, 1, 2, 5), DRAINED)) == {
        "unexpected": 1
    }


def test_without_a_scan_a_loss_is_unlocated(tmp_path: Path) -> None:
    judged_result = judge_folder(tmp_path, OKS, receive(0, 2), DRAINED)
    # That message 1 was acknowledged at offset 1 also shows that a poll left it out.
    assert counts(judged_result) == {"lost: unlocated": 1, "poll skip": 1}


def test_without_an_end_what_is_above_the_position_is_pending(tmp_path: Path) -> None:
    # The consumers stood one past the highest offset received.
    assert counts(judge_folder(tmp_path, OKS, receive(0, 1))) == {"pending": 1}
    judged_result = judge_folder(tmp_path, OKS, receive(0, 2))
    assert counts(judged_result) == {"lost: unlocated": 1, "poll skip": 1}
    assert counts(judge_folder(tmp_path, OKS, receive(0, 1), position("consumers", 3))) == {
        "lost: unlocated": 1,
        "tail loss": 1,
    }


def test_an_inferred_position_of_the_mirror_needs_order(tmp_path: Path) -> None:
    logs = [scan("source", 0, 3), scan("target", 0, 2), *log("source", (0, 0), (1, 1), (2, 2))]
    logs += log("target", (0, 0), (2, 1))
    got = [*receive(0, offset=0), *receive(2, offset=1)]
    for ordered, finding in ((True, "lost: not-mirrored"), (False, "pending")):
        judged_result = judge_folder(tmp_path, run(ordered=ordered), OKS, logs, got)
        assert counts(judged_result) == {finding: 1}
    judged_result = judge_folder(
        tmp_path, run(ordered=False), OKS, logs, got, position("mirror", 3)
    )
    assert counts(judged_result) == {"lost: not-mirrored": 1}


def test_a_history_without_a_target_has_no_mirror(tmp_path: Path) -> None:
    scanned = [scan("source", 0, 3), *log("source", (0, 0), (1, 1), (2, 2))]
    judged_result = judge_folder(tmp_path, OKS, scanned, receive(0, 1), DRAINED)
    assert counts(judged_result) == {"lost: undelivered": 1, "tail loss": 1}
    # With a mirror and without a scan of the target, the message may be lost at any later stage.
    judged_result = judge_folder(tmp_path, run(mirror=True), OKS, scanned, receive(0, 1), DRAINED)
    assert counts(judged_result) == {"lost: unlocated": 1, "tail loss": 1}


def test_a_scan_of_the_source_alone_names_what_is_gone_from_there(tmp_path: Path) -> None:
    """Above the log start or below it, drained or not; without that scan nothing names it."""
    kept = [scan("source", 1, 3), *log("source", (2, 2))]
    gone = {"lost: expired": 1, "lost: never-stored": 1}
    for end in ([], [DRAINED]):
        judged_result = judge_folder(tmp_path, run(mirror=True), OKS, kept, receive(2), end)
        assert counts(judged_result) == gone
    judged_result = judge_folder(tmp_path, run(mirror=True), OKS, receive(2), DRAINED)
    assert counts(judged_result) == {"lost: unlocated": 2}


def test_what_may_lie_below_the_log_start_did_not_vanish(tmp_path: Path) -> None:
    """Mirrored and read, then expired at the source; the lost answers left no offsets."""
    copies = [scan("target", 0, 3), *log("target", (0, 0), (1, 1), (2, 2)), *receive(0, 1, 2)]
    kept = [scan("source", 2, 3), *log("source", (2, 2))]
    for first in (send(0, "unknown"), send(0, offset=None), send(0)):
        judged_result = judge_folder(
            tmp_path, first, send(1, "unknown"), send(2), kept, copies, DRAINED
        )
        assert (judged_result["verdict"], counts(judged_result)) == ("proven", {})


def test_what_followed_the_log_start_and_is_absent_vanished(tmp_path: Path) -> None:
    """A log that held older records: no offset of the run lies below its start."""
    sends = [send(0, offset=100), send(1, "unknown"), send(2, offset=102)]
    kept = [scan("source", 100, 103), *log("source", (0, 100), (2, 102))]
    copies = [scan("target", 0, 3), *log("target", (0, 0), (1, 1), (2, 2)), *receive(0, 1, 2)]
    assert counts(judge_folder(tmp_path, sends, kept, copies, DRAINED)) == {"vanished": 1}


@pytest.mark.parametrize("first", [0, 1])
def test_what_the_mirror_copied_later_is_later(first: int, tmp_path: Path) -> None:
    """Two producers share a key of a compacted topic; of p1's message no source offset is known."""
    sends = [send(0, "unknown", key="k"), send(0, producer="p2", offset=1 - first, key="k")]
    kept = [scan("source", 0, 2, compacted=True), *log("source", (0, 1 - first), producer="p2")]
    copies = [
        scan("target", 0, 2),
        *log("target", (0, first)),
        *log("target", (0, 1 - first), producer="p2"),
    ]
    got = [*receive(0, offset=first), *receive(0, offset=1 - first, producer="p2")]
    got = sorted(got, key=lambda line: int(line["offset"]))
    judged_result = counts(judge_folder(tmp_path, sends, kept, copies, got, DRAINED))
    assert judged_result == ({"vanished": 1} if first else {})


def test_nothing_is_acknowledged_with_acks_0(tmp_path: Path) -> None:
    judged_result = judge_folder(tmp_path, run(acks="0"), OKS, receive(0, 1, 2), DRAINED)
    assert judged_result["verdict"] == "inconclusive"
    assert judged_result["metrics"]["yield"] is None
    assert (judged_result["metrics"]["unknown"], judged_result["metrics"]["harvest"]) == (3, 1.0)


def test_two_acknowledged_sends_at_different_offsets_reuse_a_sequence(tmp_path: Path) -> None:
    judged_result = judge_folder(tmp_path, OKS, send(1, offset=3), receive(0, 1, 2), DRAINED)
    assert counts(judged_result) == {"duplicate: source": 1, "reused sequence": 1}
    assert judged_result["verdict"] == "violated"
    judged_result = judge_folder(
        tmp_path, OKS, send(1), receive(0, 1, 2), DRAINED
    )  # a line that was repeated
    assert counts(judged_result) == {}
    judged_result = judge_folder(
        tmp_path, OKS, send(1, "failed", offset=3), receive(0, 1, 2), DRAINED
    )
    assert counts(judged_result) == {}
    assert judged_result["metrics"]["ok"] == 3


def test_the_start_of_an_assignment_shows_what_was_skipped(tmp_path: Path) -> None:
    judged_result = judge_folder(tmp_path, OKS, assign(0), receive(1, 2), DRAINED)
    assert counts(judged_result) == {"poll skip": 1, "lost: unlocated": 1}
    judged_result = judge_folder(tmp_path, OKS, assign(1), receive(1, 2), DRAINED)
    assert counts(judged_result) == {"lost: unlocated": 1}


MALFORMED = [
    ("{", "line 3 is not JSON"),
    ("", None),
    ("[1]", "line 3 is not a JSON object"),
    ("null", "line 3 is not a JSON object"),
    ('"send"', "line 3 is not a JSON object"),
    ("{}", "line 3 has a `kind` that the format does not know"),
    ('{"kind": "recieve"}', "line 3 has a `kind` that the format does not know"),
    ('{"kind": ["send"]}', "line 3 has a `kind` that the format does not know"),
    ('{"kind": "run"}', "only the first line of a history may be one"),
    ('{"kind": "end"}', "without `drained`"),
    ('{"kind": "end", "drained": "yes"}', "neither true nor false"),
    ('{"kind": "end", "drained": NaN}', "not JSON"),
    ("[" * 100_000, "nested too deeply"),
    ("x" * (1 << 20), "is longer than"),
    (json.dumps({**send(3), "seq": "3"}), "`seq` .* is not a whole number"),
    (json.dumps({**send(3), "seq": -1}), "`seq` .* is not between"),
    (json.dumps({**send(3), "seq": True}), "`seq` .* is not a whole number"),
    (json.dumps({**send(3), "seq": 1.5}), "`seq` .* is not a whole number"),
    (json.dumps({**send(3), "seq": 10**30}), "`seq` .* is not between"),
    (json.dumps({**send(3), "sent_us": None}), "without `sent_us`"),
    (json.dumps({**send(3), "outcome": "maybe"}), "`outcome` .* is not one of ok, failed, unknown"),
    (json.dumps({**send(3), "producer": 7}), "`producer` .* is not a string"),
    (json.dumps({**send(3), "topic": "\ud800"}), "`topic` .* contains an unpaired surrogate"),
    (json.dumps({**send(3), "fate": "lost"}), "`fate` .* is not one of"),
    (json.dumps(send(3))[:-1] + ', "seq": 4}', "the field `seq` is present twice"),
    (json.dumps(send(0))[:-1] + ', "note": 1, "note": 2}', None),
    (json.dumps({**send(3), "note": float("nan")}), "not JSON: NaN is not a number"),
    (json.dumps({**send(3), "note": -float("inf")}), "not JSON: -Infinity is not a number"),
    (json.dumps({**send(0), "note": "NaN, Infinity"}), None),
    (json.dumps({**send(3), "sent_us": 2.0**53 + 2}), "`sent_us` .* is too large to be exact"),
    (json.dumps({**send(3), "seq": 1e30}), "`seq` .* is not between"),
    (json.dumps({**send(3, offset=0), "seq": 0.0, "sent_us": 2.0**53}), None),
    (json.dumps(scan("middle", 0, 1)), "`cluster` .* is not one of source, target"),
    (json.dumps(scan("source", 5, 1)), "`end` is below its `start`"),
]


@pytest.mark.parametrize(("line", "reason"), MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_line_is_named_and_nothing_is_judged(
    line: str, reason: str | None, tmp_path: Path
) -> None:
    path = write(tmp_path, [send(0), *receive(0)])
    path.write_text(path.read_text() + line + "\n" + json.dumps(DRAINED) + "\n")
    if reason is None:  # blank lines are skipped, and unknown fields are ignored
        assert judge_history(path).verdict == "proven"
        return
    with pytest.raises(UsageError, match=reason):
        judge_history(path)


def test_other_encodings_other_formats_and_files_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "h"
    path.write_bytes(b'{"kind": "end", "drained": \xff}')
    with pytest.raises(UsageError, match="line 1 is not UTF-8"):
        judge_history(path)
    for content, reason, remedy in (
        (gzip.compress(b"{}"), "line 1 is compressed with gzip", "unpack the file"),
        ('{"kind": "run"}\n'.encode("utf-16"), "line 1 is UTF-16", "convert the file to UTF-8"),
        (b'{"kind": "run"}\n{"kind": "end", "dra', "line 2 is not JSON", "leave out `end`"),
        (b'{"kind": "end", "dra\n', "line 1 is not JSON", "correct the line"),
    ):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=reason) as caught:
            judge_history(path)
        assert remedy in str(caught.value.remedy)
    path.write_text('{"kind": "run", "format": 2}')
    with pytest.raises(UsageError, match="`format`"):
        judge_history(path)
    with pytest.raises(UsageError, match="cannot be read"):
        judge_history(tmp_path)
    path.write_text("\ufeff" + json.dumps(run()) + "\n\n" + json.dumps(send(0)), encoding="utf-8")
    assert judge_history(path).metrics.ok == 1


@pytest.mark.slow
def test_a_history_larger_than_memory_goes_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = flat(
        *(send(n, txn=str(n // 5), fate="committed", committed_us=0) for n in range(400)),
        receive(*(n for n in range(400) if n != 77)),
        DRAINED,
    )
    whole = judge_folder(tmp_path, lines)
    monkeypatch.setattr("shoal.audit.history.store.ROWS_PER_CHUNK", 30)
    monkeypatch.setattr("shoal.audit.history.store.MOST_ROWS_IN_MEMORY", 100)
    assert judge_folder(tmp_path, lines) == whole
    assert counts(whole) == {"lost: unlocated": 1, "poll skip": 1, "torn transaction": 1}
