"""Scripts that create and delete a cluster on the machines of AWS, GCP or Azure.

The scripts are files of the package, the same for every cluster; what differs is in `settings.sh`.
Each provider's file defines four functions: create_network, create_machine, print_addresses,
delete_everything.
"""

import shlex
from collections.abc import Mapping
from importlib.resources import files as package_files

from shoal.generate.files import Files, GeneratedFile

PROVIDERS: Mapping[str, Mapping[str, str]] = {
    "aws": {
        "REGION": "eu-central-1",
        "ZONES": "eu-central-1a eu-central-1b eu-central-1c",
        "MACHINE": "m7i.large",
        "IMAGE": "resolve:ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/"
        "hvm/ebs-gp3/ami-id",
        "SSH_USER": "ubuntu",
    },
    "gcp": {
        "ZONES": "europe-west3-a europe-west3-b europe-west3-c",
        "MACHINE": "n2-standard-2",
        "IMAGE": "ubuntu-2404-lts-amd64",
        "IMAGE_PROJECT": "ubuntu-os-cloud",
        "SSH_USER": "shoal-admin",
    },
    "azure": {
        "REGION": "germanywestcentral",
        "ZONES": "1 2 3",
        "MACHINE": "Standard_D2s_v5",
        "IMAGE": "Ubuntu2404",
        "SSH_USER": "azureuser",
    },
}
_HEAD = """\
# Settings of up.sh and down.sh; each can also be given as an environment variable.
"""
_ADMIN = """\
: "${ADMIN_CIDR:?the addresses that may use ssh, such as 203.0.113.7/32}"
: "${SSH_KEY:?the file of your private ssh key; its public key is beside it, with .pub}"
"""


def generate_cloud(provider: str, *, name: str) -> Files:
    """The scripts for one provider."""
    settings = {"NAME": name, **PROVIDERS[provider], "DISK_GB": "100"}
    lines = [f': "${{{key}:={_in_quotes(value)}}}"\n' for key, value in settings.items()]
    return {
        "settings.sh": GeneratedFile(_HEAD + "".join(lines) + _ADMIN),
        "cloud-init.yaml": GeneratedFile(_read("cloud-init.yaml")),
        "provider.sh": GeneratedFile(_read(f"provider-{provider}.sh")),
        "up.sh": GeneratedFile(_read("up.sh"), is_executable=True),
        "down.sh": GeneratedFile(_read("down.sh"), is_executable=True),
    }


def _in_quotes(value: str) -> str:
    """A default value inside a quoted expansion: nothing in it may have another meaning there."""
    assert not set(value) & set('"$`\\}'), shlex.quote(value)  # noqa: S101 - a constant above
    return value


def _read(name: str) -> str:
    return (package_files("shoal.generate") / "cloud_files" / name).read_text(encoding="utf-8")
