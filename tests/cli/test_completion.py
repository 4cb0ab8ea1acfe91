"""The Tab key: commands, presets, runs, clusters and topics, as a shell asks for them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from shoal.lite.cluster import LiteCluster
from shoal.systems import registry
from shoal.systems.clusters import make_cluster
from support.lite.clusters import eventually


def complete(line: str, folder: Path) -> list[str]:
    """What bash would offer for the last word of the line."""
    words = line.split(" ")
    asked = {
        "_SHOAL_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "XDG_STATE_HOME": str(folder / "state"),
    }
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'shoal'; import shoal.__main__ as m; m.run()",
        ],
        env=os.environ | asked,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    return [each.partition(",")[2] for each in done.stdout.splitlines() if each]


def test_commands_presets_and_runs(tmp_path: Path) -> None:
    (tmp_path / "mirror-of-mine.toml").write_text("")
    for name in ("20260101-one", "20260102-two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text("{}")
    assert complete("shoal com", tmp_path) == ["compare", "completion"]
    assert "--topics" in complete("shoal produce --to", tmp_path)
    offered = complete("shoal run mirror-", tmp_path)
    assert {"mirror-correctness", "mirror-of-mine.toml"} <= set(offered)
    assert set(complete("shoal audit 2026", tmp_path)) == {"20260101-one", "20260102-two"}
    assert complete("shoal runs show 20260102", tmp_path) == ["20260102-two"]
    sweep = tmp_path / "runs" / "sweep-x"
    (sweep / "acks_0").mkdir(parents=True)
    (sweep / "sweep.json").write_text("{}")
    (sweep / "acks_0" / "run.json").write_text("{}")
    assert complete("shoal audit sweep", tmp_path) == ["sweep-x/"]
    assert complete("shoal audit sweep-x/", tmp_path) == ["sweep-x/acks_0"]
    assert complete("shoal runs list sw", tmp_path) == ["sweep-x"]


def test_clusters_and_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with make_cluster("lite", name="blue") as cluster:
        assert isinstance(cluster, LiteCluster)
        registry.publish(cluster)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for future in admin.create_topics([NewTopic(n, 1) for n in ("orders", "pay")]).values():
            future.result()
        assert complete("shoal cluster down --name b", tmp_path) == ["blue"]
        line = f"shoal produce --bootstrap-server {cluster.bootstrap} --topics orders,p"
        # A shell waits two seconds for topics, which is not enough on a busy machine.
        eventually(lambda: complete(line, tmp_path) == ["orders,pay"])
        registry.withdraw("blue")
    assert complete(line, tmp_path) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    command = [sys.executable, "-m", "shoal", "completion", shell]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert "_SHOAL_COMPLETE=" in done.stdout
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)  # noqa: S607
