"""The command behind `make prove-lifecycle`: options, progress, and the report."""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from shoal.runtime.conditions import code_version, conditions
from support.lifecycle.cells import ENGINES, Cell, all_cells, group_plays, select_cells
from support.lifecycle.keeping import describe_codes, keep_result, read_kept, read_replayed
from support.lifecycle.pairwise import cover_pairs
from support.lifecycle.planting import Planted
from support.lifecycle.plays import Result
from support.lifecycle.reporting import Section, write_report
from support.lifecycle.running import RunOptions, play_cells

# A selection of fewer cells may have no mirror that changes its depth.
WHOLE_CELLS = 50


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Play the cells of the lifecycle matrix.")
    parser.add_argument("--engine", choices=ENGINES, default="lite")
    parser.add_argument("--cells", action="append", default=[], metavar="FILTER")
    parser.add_argument("--jobs", type=int, default=0, help="2 on lite, 1 on apache")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--limit-minutes", type=float, default=0.0)
    parser.add_argument("--patience", type=float, default=2.0, help="stretches waits by so much")
    parser.add_argument(
        "--results", type=Path, help="add results to this file; play what is not in it, or failed"
    )
    parser.add_argument("--keep", type=Path, help="keep logs in this folder")
    parser.add_argument("--list", action="store_true", help="print the cells and end")
    return parser.parse_args()


def chosen_cells(engine: str, filters: list[str], seed: int) -> list[Cell]:
    """All cells on Kafka Lite, a pairwise cover on Apache Kafka."""
    cells = all_cells(engine)
    if engine == "apache":
        cells = cover_pairs(cells, seed=seed)
    return select_cells(cells, filters)


def main() -> int:
    options = _options()
    cells = chosen_cells(options.engine, options.cells, options.seed)
    if options.list or not cells:
        for cell in cells:
            _say(f"{cell}")
        return 0 if cells else 2
    began = time.monotonic()
    code = code_version("src", "scripts", "tests/support")
    with tempfile.TemporaryDirectory(prefix="shoal-lifecycle-") as folder:
        file = options.results or Path(folder) / "results"
        kept = {cell: each for cell, each in read_kept(file).items() if each.result.is_good}
        left = [cell for cell in cells if cell not in kept]
        _say(f"{len(left)} cells in {len(list(group_plays(left)))} plays on {options.engine}")

        def show(result: Result) -> None:
            keep_result(file, result, code)
            write_identity = "ok  " if result.is_good else "FAIL"
            at = f"{time.monotonic() - began:7.1f} s  {write_identity} {result.seconds:5.1f} s"
            _say(f"{at}  {result.cell}: {result.verdict.outcome} {result.verdict.detail}")

        _, planted = play_cells(left, options.keep or Path(folder), _run_options(options), show)
        found, replayed = read_kept(file), read_replayed(file)
    played = [found[cell] for cell in cells if cell in found]
    seconds = time.monotonic() - began
    is_good = _sum_up([each.result for each in played], len(cells), planted, seconds)
    if options.report is not None:
        command = f"scripts/prove_lifecycle.py {' '.join(sys.argv[1:])}"
        section = Section(
            engine=options.engine,
            results=[each.result for each in played],
            planned=len(cells),
            code=describe_codes(played),
            planted=planted,
            replayed=[(each.result, each.code) for each in replayed],
            conditions=conditions(
                command, elapsed_s=seconds, code=code, packages=["confluent-kafka"]
            ),
        )
        write_report(options.report, section)
    return 0 if is_good else 1


def _run_options(options: argparse.Namespace) -> RunOptions:
    return RunOptions(
        engine=options.engine,
        jobs=options.jobs or (2 if options.engine == "lite" else 1),
        seed=options.seed,
        limit_s=options.limit_minutes * 60,
        patience=options.patience,
        plants=not options.cells,
    )


def _sum_up(
    results: Sequence[Result], planned: int, planted: Planted | None, seconds: float
) -> bool:
    """Say what came of a run; whether that is good."""
    failed = [result for result in results if not result.is_good]
    _say(f"{len(results)} of {planned} cells played, {len(failed)} failed, {seconds:.0f} s")
    if planted is not None:
        _say(f"{planted.found} of {planted.planted} planted silent skips found")
        for text in planted.mistaken:
            _say(f"  not as planted: {text}")
    is_blind = planted is not None and not planted.is_good
    switches = sum(result.switches for result in results)
    _say(f"{switches} changes of depth while partitions were copied")
    # A whole run must have some: otherwise it does not show what adaptive depth does.
    is_uniform = len(results) == planned and planned >= WHOLE_CELLS and not switches
    return bool(results) and not failed and not is_blind and not is_uniform
