"""The scripts for clouds call the providers' tools as they should; the tools are stubs here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.generate.cloud import PROVIDERS, generate_cloud
from shoal.generate.files import write_files
from shoal.generate.plan import Host
from shoal.generate.systemd import generate_systemd

TOOLS = {"aws": "aws", "gcp": "gcloud", "azure": "az"}
# Writes its arguments to a log, and answers what the scripts read.
STUB = """\
#!/bin/sh
for word in "$(basename "$0")" "$@"; do printf '%s\\t' "$word"; done >> "$CALLS"
echo >> "$CALLS"
case "$*" in
  *"$FAILS"*) exit 1 ;;
  *create-security-group*) echo sg-1 ;;
  *run-instances*) echo i-1 ;;
  *tag:shoal*) echo i-1 i-2 i-3 ;;
  *describe-instances* | *"instances describe"* | *list-ip-addresses*) answer=1 ;;
esac
if [ "${answer:-}" ]; then
  count="$(grep -c . "$CALLS.addresses" 2>/dev/null || true)"
  count=$((${count:-0} + 1))
  echo "$count" >> "$CALLS.addresses"
  printf '10.0.0.%s\\t198.51.100.%s\\n' "$count" "$count"
fi
"""


class Cloud:
    """A folder of scripts, and stubs of everything that they call."""

    def __init__(self, provider: str, folder: Path) -> None:
        self.scripts = folder / "scripts"
        write_files(generate_cloud(provider, name="east"), self.scripts)
        self.calls_path = folder / "calls"
        self.wheel = folder / "shoal-0-py3-none-any.whl"
        self.wheel.touch()
        (folder / "key.pub").write_text("ssh-ed25519 AAAA you")
        stubs = folder / "bin"
        stubs.mkdir()
        for tool in (*TOOLS.values(), "ssh", "scp"):
            (stubs / tool).write_text(STUB)
            (stubs / tool).chmod(0o755)
        path = os.pathsep.join([str(stubs), str(Path(sys.executable).parent), os.defpath])
        self.environment = {
            "PATH": path,
            "CALLS": str(self.calls_path),
            "FAILS": "nothing fails",
            "ADMIN_CIDR": "203.0.113.7/32",
            "SSH_KEY": str(folder / "key"),
            "KEY_NAME": "mine",
            "RETRY_SECONDS": "0",
        }

    def run(self, script: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(self.scripts / script), *words],  # noqa: S607 - any POSIX shell will do
            env=self.environment | more,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def calls(self, tool: str) -> list[list[str]]:
        if not self.calls_path.exists():
            return []
        lines = [line.rstrip("\t").split("\t") for line in self.calls_path.read_text().splitlines()]
        return [line[1:] for line in lines if line[0] == tool]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_cluster_comes_up_in_three_zones_and_goes_down(provider: str, tmp_path: Path) -> None:
    cloud = Cloud(provider, tmp_path)
    up = cloud.run("up.sh", str(cloud.wheel))
    assert up.returncode == 0, up.stderr
    assert "bootstrap.servers=10.0.0.1:9092,10.0.0.2:9092,10.0.0.3:9092\n" in up.stdout
    calls = cloud.calls(TOOLS[provider])
    made = {"aws": "run-instances", "gcp": "instances create", "azure": "vm create"}[provider]
    machines = [call for call in calls if made in " ".join(call)]
    zones = PROVIDERS[provider]["ZONES"].split()
    assert len(machines) == len(zones) == 3
    for machine, zone in zip(machines, zones, strict=True):
        assert any(word.endswith(zone) for word in machine)
        assert any("cloud-init.yaml" in word for word in machine)
    opened = [call for call in calls if "203.0.113.7/32" in call]
    assert len(opened) == 1, "only ssh is open to the outside"
    # Each machine gets the wheel, the configuration of its own address, and is awaited.
    shell = [" ".join(call) for call in cloud.calls("ssh")]
    assert len(cloud.calls("scp")) == 3
    for number in (1, 2, 3):
        at = f"@198.51.100.{number} "
        assert any(f"{at}sudo sh hosts/install.sh 10.0.0.{number}" in call for call in shell)
        wanted = f"{at}/opt/shoal/bin/shoal ready --id {number} 10.0.0.{number}:9092 --wait 300"
        assert any(wanted in call for call in shell)
    config = (cloud.scripts / "hosts" / "10.0.0.2" / "broker.properties").read_text()
    assert f"broker.rack={zones[1]}\n" in config
    cloud.calls_path.unlink()
    down = cloud.run("down.sh")
    assert down.returncode == 0, down.stderr
    assert "delete" in " ".join(word for call in cloud.calls(TOOLS[provider]) for word in call)


@pytest.mark.parametrize(
    ("fails", "missing"),
    [("create-security-group", "run-instances"), ("run-instances", "scp"), ("install.sh", "ready")],
)
def test_a_failed_step_is_the_last_one(fails: str, missing: str, tmp_path: Path) -> None:
    cloud = Cloud("aws", tmp_path)
    assert cloud.run("up.sh", str(cloud.wheel), FAILS=fails).returncode != 0
    calls = cloud.calls_path.read_text()
    assert fails in calls
    assert missing not in calls


@pytest.mark.parametrize("unset", ["ADMIN_CIDR", "SSH_KEY", "KEY_NAME"])
def test_a_missing_setting_is_named_before_anything_is_created(unset: str, tmp_path: Path) -> None:
    cloud = Cloud("aws", tmp_path)
    done = cloud.run("up.sh", str(cloud.wheel), **{unset: ""})
    assert done.returncode != 0
    assert unset in done.stderr
    assert not cloud.calls_path.exists()


@pytest.mark.system("shellcheck")
@pytest.mark.parametrize("provider", PROVIDERS)
def test_scripts_have_no_finding_of_shellcheck(provider: str, tmp_path: Path) -> None:
    write_files(generate_cloud(provider, name="east"), tmp_path)
    write_files(generate_systemd([Host("a")], name="east"), tmp_path)
    scripts = sorted(str(path) for path in tmp_path.glob("*.sh"))
    command = ["shellcheck", "--shell=sh", "--exclude=SC2034,SC2154,SC2317,SC2329", *scripts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == ""
