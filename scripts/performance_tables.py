"""Fill the tables of docs/reference/performance.md from benchmarks/results/*.json.

    python scripts/performance_tables.py            # writes the page
    python scripts/performance_tables.py --check    # exit code 1 if the page is not up to date

A line `<!-- table: NAME -->` begins a table and `<!-- end -->` ends it. What is between them is
replaced: whether the claim of `benchmarks/results/NAME.json` holds, when and under which load it
was measured, and its numbers. The text around the tables is written by hand.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
SHAPES = {
    "cpu_us_per_record": "CPU µs per record",
    "core_percent": "% of a core",
    "offsets_per_record": "offsets at the target per record",
    "times_the_floor": "times the kernel's copy floor",
}
MIRRORS = ("shoal", "mm2", "mm1")

Result = dict[str, Any]


def fill_page(text: str) -> str:
    """Replace every table of the page by the one that its stored result gives."""
    return BLOCK.sub(lambda block: _render_block(block[1]), text)


def list_tables(text: str) -> list[str]:
    """Name the stored results that the page has a table of."""
    return BLOCK.findall(text)


def _render_block(name: str) -> str:
    result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    lines = [f"<!-- table: {name} -->", _describe(result), "", *RENDERERS[name](result)]
    return "\n".join([*lines, "<!-- end -->"])


def _describe(result: Result) -> str:
    machine = result["machine"]
    loads = ", ".join(_number(load) for load in machine["load_average"])
    holds = "The claim holds" if result["holds"] else "**The claim does not hold**"
    return (
        f"{holds}: `benchmarks/results/{result['name']}.json`, {result['measured'][:10]}, "
        f"Python {machine['python']}, load {loads} over 1, 5 and 15 minutes at the end."
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return lines + [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]


def _number(value: float) -> str:
    """Three digits that count, or all of a large number, with separators."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):g}"


def _range(values: Iterable[float]) -> str:
    listed = list(values)
    return f"{_number(min(listed))} to {_number(max(listed))}"


def _median_and_range(median: float, interval: Sequence[float]) -> str:
    return f"{_number(median)} ({_range(interval)})"


def _render_pairs(result: Result) -> list[str]:
    """A benchmark of pairs: ours and theirs do the same work."""
    heads = (
        "case",
        "their CPU / ours, median (range)",
        "bar",
        "CPU s/GB, ours / theirs",
        "our MB/s / theirs",
        "MiB, ours",
    )
    return _table(heads, (_pair_row(result, case) for case in result["cases"]))


def _pair_row(result: Result, case: Result) -> Sequence[object]:
    ours, theirs = case["ours"], case["theirs"]
    speed = case.get("speed_median")
    return (
        case["case"],
        _median_and_range(case["ratio_median"], case["ratio_interval"]),
        _number(case.get("bar", result["bar"])) if case["judged"] else "none",
        f"{_number(ours['cpu_s_per_gb_median'])} / {_number(theirs['cpu_s_per_gb_median'])}",
        "-" if speed is None else _number(speed),
        _number(ours["peak_memory_mib"]),
    )


def _render_start(result: Result) -> list[str]:
    fields = {
        "first write, s": "first_write_s",
        "serving, s": "serving_s",
        "idle broker, MB (PSS)": "broker_mb",
        "whole cluster by brokers, MB": "cluster_mb_per_broker",
    }
    rows = [
        (
            name,
            _range(run[key] for run in result["ours"]["runs"]),
            _range(run[key] for run in result["theirs"]["runs"]),
        )
        for name, key in fields.items()
    ]
    times = _median_and_range(result["times_as_soon_median"], result["times_as_soon_interval"])
    rows.append(("their time to the first write / ours", times, ""))
    rows.append(("our memory / theirs", _number(result["memory_share"]), ""))
    return _table(("", "Kafka Lite", "Apache Kafka"), rows)


def _render_failover(result: Result) -> list[str]:
    rows = [
        (event, *(_failover_cell(result[side][event]) for side in ("ours", "theirs")))
        for event in ("killed", "paused")
    ]
    return _table(("leader", "Kafka Lite, s", "Apache Kafka, s"), rows)


def _failover_cell(measured: Result) -> str:
    seconds = measured["seconds"]
    return f"{_range(seconds)}, median {_number(measured['median_s'])} ({len(seconds)} times)"


def _render_bulk(result: Result) -> list[str]:
    rounds = result["rounds"]
    works = [[*measured["controls"], *measured["works"]] for measured in rounds]
    rows = [
        (
            of_rounds[0]["work"],
            ", ".join(str(work["longest_gap_ms"]) for work in of_rounds),
            ", ".join(_number(work["seconds"]) for work in of_rounds),
            _range(load for work in of_rounds for load in _loads(work)),
        )
        for of_rounds in zip(*works, strict=True)
    ]
    holds = [max(measured["longest_hold_cpu_ms"].values()) for measured in rounds]
    rows.append(("longest CPU time of one step", ", ".join(str(ms) for ms in holds), "", ""))
    rows.append(("elections", ", ".join(str(one["elections"]) for one in rounds), "", ""))
    smallest = ", ".join(str(one["smallest_in_sync"]) for one in rounds)
    rows.append(("fewest in-sync replicas", smallest, "", ""))
    return _table(("beside the writer", "longest gap, ms, by round", "took, s", "load"), rows)


def _loads(work: Result) -> tuple[float, float]:
    return work["load_before"], work["load_after"]


def _render_latency(result: Result) -> list[str]:
    keys = {"p50": "p50_ms", "p99": "p99_ms", "p99.9": "p999_ms", "max": "max_ms"}
    rows = [
        (name, *(_range(run[key] for run in result[side]["runs"]) for side in ("ours", "theirs")))
        for name, key in keys.items()
    ]
    times = _median_and_range(result["p99_times_median"], result["p99_times_interval"])
    rows.append(("our p99 / theirs, median (range)", times, ""))
    return _table(("ms, range of the runs", "Kafka Lite", "Apache Kafka"), rows)


def _render_mirror(result: Result) -> list[str]:
    copies = [case for case in result["cases"] if "windows" in case]
    heads = (
        "codec",
        "CPU s/GB: ours, MM2, MM1",
        "MM2's CPU / ours, median (range)",
        "bar",
        "MB/s: ours, MM2, MM1",
        "memory, MB: ours, MM2, MM1",
        "ready after, s: ours, MM2, MM1",
    )
    rows = [
        (
            case["case"],
            _medians(case, "cpu_s_per_gb"),
            _median_and_range(case["cpu_ratio"], case["cpu_ratio_interval"])
            if "cpu_ratio_interval" in case
            else _number(case["cpu_ratio"]),
            _number(case["bar"]),
            _medians(case, "mb_per_s"),
            _medians(case, "peak_memory_mb"),
            _medians(case, "ready_s"),
        )
        for case in copies
    ]
    [latency] = [case for case in result["cases"] if case["case"] == "latency"]
    times = _median_and_range(latency["p99_times_median"], latency["p99_times_interval"])
    on_spark = f"p99 of the latency on Spark / in processes: {times}, bar {latency['bar']}."
    return [*_table(heads, rows), "", on_spark]


def _render_shapes(result: Result) -> list[str]:
    rows = [
        (
            case["case"],
            SHAPES[case["figure"]],
            _number(case["ours"]),
            "" if case["mm2"] is None else _number(case["mm2"]),
            "" if case["of_mm2"] is None else _number(case["of_mm2"]),
            "" if case["bar"] is None else _number(case["bar"]),
            ", ".join(_number(load) for load in case["load_average"]),
        )
        for case in result["cases"]
    ]
    return _table(("case", "figure", "ours", "MM2", "ours / MM2", "bar", "load"), rows)


def _medians(case: Result, key: str) -> str:
    """The median of the copies by each mirror."""
    values = [
        [window[key] for window in case["windows"] if window["mirror"] == mirror]
        for mirror in MIRRORS
    ]
    return ", ".join(_number(statistics.median(of_mirror)) for of_mirror in values)


def _render_pacing(result: Result) -> list[str]:
    keys = ("p50_us", "p90_us", "p99_us", "p99.9_us", "max_us")
    rows = [[f"{result[key]:,}" for key in keys]]
    return _table([f"{key.removesuffix('_us')}, µs" for key in keys], rows)


def _render_checkouts(result: Result) -> list[str]:
    rows = [
        (
            case["case"],
            "{:.3f} ({:.3f} to {:.3f})".format(case["ratio"], *case["ratio_interval"]),
            _number(statistics.median(case["new_cpu_s"])),
            _number(statistics.median(case["old_cpu_s"])),
            len(case["new_cpu_s"]),
            _number(case["load_average"][0]),
        )
        for case in result["cases"]
    ]
    heads = (
        "case",
        "CPU, new / old (95 % interval)",
        f"CPU s, {result['new']}",
        f"CPU s, {result['old']}",
        "pairs",
        "load at the end",
    )
    return _table(heads, rows)


def _render_huge(result: Result) -> list[str]:
    def interval(size: Result, name: str, unit: float = 1.0) -> str:
        ends = [_number(value / unit) for value in size["intervals"][name]]
        return ends[0] if ends[0] == ends[1] else " to ".join(ends)

    mib = float(1 << 20)
    rows = [
        (
            f"{size['messages']:,}",
            _number(size["ledger_bytes"] / 1e6),
            interval(size, "driver_bytes", 1e6),
            interval(size, "wall_s"),
            interval(size, "cpu_s"),
            interval(size, "driver_pss_bytes", mib),
            interval(size, "largest_worker_pss_bytes", mib),
            interval(size, "tree_pss_bytes", mib),
        )
        for size in result["sizes"]
    ]
    heads = ("messages", "ledgers, MB", "to the driver, MB", "time, s", "CPU, s", "driver, MiB")
    lines = _table((*heads, "largest worker, MiB", "whole tree, MiB"), rows)
    grown = result["growth"][-1]
    exponents = "; ".join(
        f"{word} {' to '.join(map(str, grown['exponents'][name]))} (at most {most})"
        for word, (name, most) in zip(
            ("bytes to the driver", "time", "CPU"), result["most_exponents"].items(), strict=True
        )
    )
    return [
        *lines,
        "",
        f"Exponents from {grown['from']:,} to {grown['to']:,} messages: {exponents}.",
    ]


RENDERERS: dict[str, Callable[[Result], list[str]]] = {
    "audit": _render_pairs,
    "audit_growth": _render_pairs,
    "audit_huge": _render_huge,
    "checkouts": _render_checkouts,
    "columnar_decode": _render_pairs,
    "consumer": _render_pairs,
    "lite_bulk": _render_bulk,
    "lite_failover": _render_failover,
    "lite_latency": _render_latency,
    "lite_one_broker": _render_pairs,
    "lite_start": _render_start,
    "mirror": _render_mirror,
    "mirror_shapes": _render_shapes,
    "producer": _render_pairs,
    "producer_pacing": _render_pacing,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare only")
    before = PAGE.read_text(encoding="utf-8")
    filled = fill_page(before)
    if parser.parse_args().check:
        return int(filled != before)
    PAGE.write_text(filled, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
