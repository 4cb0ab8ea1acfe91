"""Kafka's jars: lists, checks, damage, rivals, and a network that fails.

Where no real download is needed, Java is a script that plays Ivy: it reads the same command
line and puts files where Ivy would.
"""

import hashlib
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.model.errors import ConfigError, SystemFailure
from shoal.systems.apache import ivy, jars
from shoal.systems.apache.ivy import StartProgress
from support.apache.java_homes import make_java_home

# The last argument of Ivy is the pattern of the files that it shall make.
PLAY_IVY = """
for last; do :; done
folder=$(dirname "$last")
echo run >> "{calls}"
sleep 0.2
mkdir -p "$folder"
cp "{store}"/*.jar "$folder"
printf '\\tfound x\\n\\t[SUCCESSFUL ] x\\n'
"""


class Shop:
    """A made-up Kafka 9.9.9 of two jars, and a Java that delivers it."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.calls = folder / "calls"
        self.lists = folder / "lists"
        for made in (self.store, self.lists):
            made.mkdir()
        lines = ["# a comment"]
        for name in ("one", "two"):
            content = name.encode() * 1000
            (self.store / f"{name}-1.0.jar").write_bytes(content)
            lines.append(f"{hashlib.sha256(content).hexdigest()} org.example:{name}:1.0")
        (self.lists / "9.9.9.txt").write_text("\n".join(lines))
        script = PLAY_IVY.format(calls=self.calls, store=self.store)
        self.java_home = make_java_home(folder / "java", "17.0.1", script=script)

    def count_calls(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shop:
    shop = Shop(tmp_path)
    monkeypatch.setattr(jars, "_lists", lambda: shop.lists)
    monkeypatch.setenv("JAVA_HOME", str(shop.java_home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return shop


def test_the_checked_in_list_is_complete() -> None:
    listed = jars.jar_list(jars.NEWEST_KAFKA)
    assert jars.list_versions()[-1] == jars.NEWEST_KAFKA
    assert len(listed.hashes) == 92
    names = {jar.file_name for jar in listed.hashes}
    assert len(names) == 92
    assert {"kafka_2.13-4.3.1.jar", "kafka-tools-4.3.1.jar", "log4j-core-2.25.4.jar"} <= names


@pytest.mark.parametrize("version", ["0.8.2", "2.3.1", "newest", "4.3", "4.3.1.1", "-1.0.0"])
def test_what_cannot_be_a_version_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match="Apache Kafka"):
        jars.fetch_jars(version)


def test_jars_are_fetched_once_and_then_found(shop: Shop) -> None:
    seen: list[StartProgress] = []
    folder = jars.fetch_jars("9.9.9", report=seen.append)
    assert sorted(path.name for path in folder.iterdir()) == ["one-1.0.jar", "two-1.0.jar"]
    assert seen[-1].step > 0
    assert seen[-1].steps == 4
    assert jars.fetch_jars("9.9.9") == folder
    assert shop.count_calls() == 1
    left = sorted(path.name for path in folder.parent.iterdir())
    assert left == ["9.9.9", "9.9.9.lock"]


def test_damage_in_the_cache_is_mended(shop: Shop) -> None:
    folder = jars.fetch_jars("9.9.9")
    (folder / "one-1.0.jar").write_bytes(b"flipped")
    (folder / "stray-1.0.jar").write_bytes(b"who put this here")
    listed = jars.jar_list("9.9.9")
    assert listed.defects(folder) == [
        "one-1.0.jar is damaged (its sha256 differs from the list)",
        "stray-1.0.jar does not belong there",
    ]
    assert jars.fetch_jars("9.9.9") == folder
    assert listed.defects(folder) == []
    assert shop.count_calls() == 2


def test_changed_files_from_the_network_are_never_used(shop: Shop) -> None:
    (shop.store / "two-1.0.jar").write_bytes(b"malice")
    with pytest.raises(SystemFailure, match=r"9\.9\.9 is damaged: two-1\.0\.jar is damaged"):
        jars.fetch_jars("9.9.9")
    assert not jars.jars_folder("9.9.9").exists()


def test_an_incomplete_download_is_never_used(shop: Shop) -> None:
    (shop.store / "two-1.0.jar").unlink()
    with pytest.raises(SystemFailure, match="cannot download 2 jars"):
        jars.fetch_jars("9.9.9")
    assert not jars.jars_folder("9.9.9").exists()


def test_rivals_wait_for_one_download(shop: Shop) -> None:
    folders: list[Path] = []
    rivals = [
        threading.Thread(target=lambda: folders.append(jars.fetch_jars("9.9.9"))) for _ in range(4)
    ]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()
    assert folders == [jars.jars_folder("9.9.9")] * 4
    assert shop.count_calls() == 1


def test_without_pyspark_there_is_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(SystemFailure, match="Ivy") as failure:
        ivy.find_ivy()
    assert failure.value.remedy == "pip install 'shoal[spark]'"


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("kind", ["refused", "silent", "nameless"])
def test_a_network_that_fails_is_explained_soon(
    kind: str, silent_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proxies = {"refused": "127.0.0.1:1", "silent": f"127.0.0.1:{silent_port}"}
    reasons = {
        "refused": "Connection refused",
        "silent": "made no progress",
        "nameless": "cannot be",
    }
    monkeypatch.setenv("HTTPS_PROXY", f"http://{proxies.get(kind, 'no-such-host.invalid:1')}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if kind == "silent":
        monkeypatch.setattr(ivy, "SILENCE_LIMIT_S", 3.0)
    with pytest.raises(SystemFailure, match=reasons[kind]) as failure:
        jars.fetch_jars()
    assert failure.value.remedy is not None
    assert "HTTPS_PROXY" in failure.value.remedy or kind == "silent"
    assert "run the same command again" in failure.value.remedy
    assert not jars.jars_folder().exists()


@pytest.mark.apache
def test_real_jars_need_no_network_once_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = jars.fetch_jars()
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setattr(subprocess, "Popen", None)
    assert jars.fetch_jars() == folder
