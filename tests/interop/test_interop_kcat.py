"""kcat, with the librdkafka that the system brings: often an old one."""

import json
import shutil
import subprocess
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.system("kcat")
PATIENCE_S = 60
KCAT = shutil.which("kcat") or "kcat"


def kcat(bootstrap: str, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [KCAT, "-b", bootstrap, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_come_back(bootstrap: str, new_topic: Callable[..., str], codec: str) -> None:
    topic = new_topic()
    lines = [f"k{number}:value {number}" for number in range(100)]
    kcat(bootstrap, "-P", "-t", topic, "-K:", "-z", codec, "-p", "0", stdin="\n".join(lines))
    said = kcat(bootstrap, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-K:")
    assert said.splitlines() == lines
    last = kcat(bootstrap, "-C", "-t", topic, "-p", "0", "-o", "-3", "-e", "-q", "-f", "%o\n")
    assert last.split() == ["97", "98", "99"]


def test_it_lists_what_there_is(bootstrap: str, topic: str) -> None:
    told = json.loads(kcat(bootstrap, "-L", "-J", "-t", topic))
    assert [one["topic"] for one in told["topics"]] == [topic]
    assert len(told["topics"][0]["partitions"]) == 1
    assert kcat(bootstrap, "-Q", "-t", f"{topic}:0:-1").split()[-1] == "0"
