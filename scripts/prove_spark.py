"""Show a run's tasks in Spark, and judge one run everywhere: the results must be equal.

    python scripts/prove_spark.py --report docs/proofs/spark.md

1. `shoal run mirror-correctness` on the local Spark; its REST interface is asked for the jobs.
2. The same on a standalone cluster of two workers that have no shoal, from a packed environment;
   an executor is killed under load.
3. That run is judged in one process, on local[2], and twice on the cluster (by cells and by
   DataFrames); each of these loses an executor half way.

Exit code 1 if a job is missing, or if two results differ. `--messages` makes the runs smaller, and
`--environment` names an environment that is packed already.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from shoal.audit.read.folder import open_ledger
from shoal.pipeline.audit_job import audit_ledger
from shoal.pipeline.environment import VARIABLE, pack
from shoal.pipeline.session import start_session, stop_session
from shoal.runtime.conditions import code_version, conditions

TESTS = Path(__file__).parents[1] / "tests"
PATIENCE_S = 300.0
PRESET = "mirror-correctness"
WORKERS, CORES = 2, 4


def run_with_page(runs: Path, messages: int) -> tuple[list[dict[str, Any]], str]:
    """Run the preset on the local Spark; return its jobs by REST, and the verdict."""
    command = [sys.executable, "-m", "shoal", "run", PRESET, "--keep-ui", "--runs-dir", str(runs)]
    command += ["--set", f"producer.messages={messages}", "--output", "json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        address = ""
        for line in process.stderr:
            if found := re.search(r"page: (http://127\.0\.0\.1:\d+)", line):
                address = found[1]
                break
        applications = ask(f"{address}/api/v1/applications")
        jobs = ask(f"{address}/api/v1/applications/{applications[0]['id']}/jobs")
        process.send_signal(signal.SIGINT)
        verdict = json.loads(process.stdout.read())["verdict"]
    return jobs, verdict


def ask(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310 - on this machine
        return json.load(answer)


def describe_jobs(jobs: list[dict[str, Any]]) -> list[tuple[str, str, int, int]]:
    """Description, status, tasks and completed tasks of each job with a description."""
    shown = [
        (j.get("description", ""), j["status"], j["numTasks"], j["numCompletedTasks"])
        for j in sorted(jobs, key=lambda job: job["jobId"])
    ]
    return [row for row in shown if row[0].startswith(("worker ", "scans"))]


def run_on_cluster(master: str, runs: Path, messages: int) -> tuple[Path, int]:
    """Run the preset on the cluster, and kill an executor under load; return its folder."""
    command = [sys.executable, "-m", "shoal", "run", PRESET, "--master", master]
    command += ["--runs-dir", str(runs), "--set", f"workers.executors={WORKERS}"]
    command += ["--set", f"producer.messages={messages}", "--set", "producer.drain_timeout=20s"]
    with subprocess.Popen(command, stdout=sys.stderr) as process:
        killed = kill_executor_under_load(process, runs)
        process.wait(PATIENCE_S)
    (folder,) = runs.iterdir()
    return folder, killed


def kill_executor_under_load(process: "subprocess.Popen[bytes]", runs: Path) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        for commits in runs.glob("*/commits.jsonl"):
            if '"table":"receipts"' in commits.read_text():
                executor = find_busy_executor()
                executor.kill()
                return int(executor.pid)
        time.sleep(0.05)
    raise SystemExit("the run ended before messages were received")


def find_busy_executor() -> psutil.Process:
    """The executor with the most Python processes below it."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
                found.append((len(process.children(recursive=True)), process.pid, process))
    return max(found)[2]


def judge_everywhere(master: str, folder: Path) -> dict[str, str]:
    """The result of the run as text, by where it was judged."""
    results = {"in one process": audit_ledger(open_ledger([folder]), None).to_json()}
    session = start_session("local[2]")
    try:
        results["on local[2]"] = audit_ledger(open_ledger([folder]), session).to_json()
    finally:
        stop_session(session)
    command = [sys.executable, "-m", "support.spark.audits", master, str(folder)]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=2 * PATIENCE_S,
    )
    how = ("by cells", "by DataFrames")
    for name, line in zip(how, done.stdout.splitlines(), strict=True):
        results[f"on the cluster, {name}, an executor killed"] = json.loads(line)
    return {name: json.dumps(result, sort_keys=True) for name, result in results.items()}


def write_report(path: Path, parts: dict[str, Any], shown: str) -> None:
    jobs = "\n".join(f"| {' | '.join(map(str, row))} |" for row in parts["jobs"])
    path.write_text(f"""# Proof: a run on Spark, judged everywhere

`shoal run {PRESET}` on the local Spark was {parts["verdict"]}. Its REST interface
(`/api/v1/applications/ID/jobs`) shows the workers and scans as tasks:

| job | status | tasks | completed |
|---|---|---|---|
{jobs}

{describe_cluster(parts)}

{shown}
""")


def describe_cluster(parts: dict[str, Any]) -> str:
    if "results" not in parts:
        return "The second part, on a cluster without shoal, was not finished in this run."
    result = json.loads(next(iter(parts["results"].values())))
    judged = "\n".join(f"- {name}" for name in parts["results"])
    kinds = len(set(parts["results"].values()))
    found = "always with the same result" if kinds == 1 else f"with {kinds} different results"
    metrics = result["metrics"]
    return f"""Then the same on a standalone cluster of two workers without shoal, in an environment
that was packed and sent there (`spark.archives`). One executor was killed under load. The run was
{result["verdict"]}: {metrics["attempts"]:,} attempts, {metrics["ok"]:,} acknowledged,
{metrics["unknown"]:,} unknown, {metrics["delivered"]:,} delivered, {metrics["lost"]:,} lost. The
ends of workers in its commit log: {parts["ends"]}.

Its ledgers were judged {len(parts["results"])} times, {found}:

{judged}"""


def read_ends(folder: Path) -> str:
    lines = map(json.loads, (folder / "commits.jsonl").read_text().splitlines())
    ends = Counter(line["reason"] for line in lines if line["kind"] == "ended")
    return ", ".join(f"{count} {reason}" for reason, count in sorted(ends.items()))


def report(path: Path, parts: dict[str, Any], *, code: str, began_s: float) -> None:
    command = " ".join(["scripts/prove_spark.py", *sys.argv[1:]])
    elapsed_s = time.monotonic() - began_s
    shown = conditions(command, elapsed_s=elapsed_s, code=code, packages=["pyspark"])
    write_report(path, parts, shown)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--environment", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    from support.spark.cluster import spark_cluster

    code, began_s = code_version("src", "scripts", "tests/support"), time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        place = Path(home)
        jobs, verdict = run_with_page(place / "local", options.messages)
        parts: dict[str, Any] = {"jobs": describe_jobs(jobs), "verdict": verdict}
        report(options.report, parts, code=code, began_s=began_s)
        environment = options.environment or place / "environment.tar.gz"
        if options.environment is None:
            pack(environment)
        os.environ[VARIABLE] = str(environment.absolute())
        with spark_cluster(
            place / "spark", workers=WORKERS, cores=CORES, has_shoal=False
        ) as cluster:
            folder, _ = run_on_cluster(cluster.master, place / "runs", options.messages)
            results = judge_everywhere(cluster.master, folder)
        parts |= {"results": results, "ends": read_ends(folder)}
        report(options.report, parts, code=code, began_s=began_s)
    names = {row[0] for row in parts["jobs"]}
    is_complete = {"worker producer-1", "worker consumer-1", "scans: read the logs"} <= names
    are_equal = len(set(results.values())) == 1
    sys.stdout.write(f"jobs {sorted(names)}; results equal: {are_equal}; {options.report}\n")
    return 0 if is_complete and are_equal else 1


if __name__ == "__main__":
    sys.exit(main())
