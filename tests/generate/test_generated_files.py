"""Generated files are valid by the tools and schemas that will read them, and refuse bad input."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from shoal.cli.main import execute
from shoal.generate.compose import generate_compose
from shoal.generate.dockerfile import generate_dockerfile
from shoal.generate.files import GeneratedFile, write_files
from shoal.generate.kubernetes import generate_kubernetes
from shoal.generate.plan import ClusterPlan, Host, MirrorPlan
from shoal.generate.systemd import generate_systemd
from shoal.generate.yaml_text import to_yaml
from shoal.model.errors import UsageError
from support.deploy.kustomize import build_kustomization

ROOT = Path(__file__).parents[2]
# The oldest version whose fields are used (labels with the index of a pod), and the newest known.
KUBERNETES_VERSIONS = ["1.28.0", kubernetes_validate.latest_version()]
FOLDERS = ["base", "overlays/small", "overlays/production", "mirror", "run", "spark"]
MIRROR = MirrorPlan("source:9092", "orders,pay.*")
HOSTS = [Host.parse(text) for text in ("a@zone-1", "b@zone-2", "c@zone-3", "d")]


@pytest.mark.parametrize(
    "value",
    [
        {"a": "yes", "b": "1", "c": 1, "d": True, "e": None, "f": "null", "g": "a: b", "h": ""},
        {"list": [], "map": {}, "nested": [{"a": [1, {"b": "x"}], "c": {}}, "y", "- z"]},
        {"text": "one\n\n  two\n", "colon": "a:1", "hash": "a #b", "quote": 'a"b', "tilde": "~"},
        {"on": "off", "0.5": "0.5", "*": "&a", "umlaut": "ü", "percent": "%x", "at": "@x"},
    ],
)
def test_yaml_is_read_as_it_was_written(value: dict[str, Any]) -> None:
    assert yaml.safe_load(to_yaml(value, comment="a\nb")) == value
    assert list(yaml.safe_load_all(to_yaml(value, value))) == [value, value]


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kubernetes")
    write_files(generate_kubernetes(ClusterPlan(name="east", mirror=MIRROR)), folder)
    return folder


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_manifests_are_valid(manifests: Path, folder: str, version: str) -> None:
    documents = build_kustomization(manifests / folder)
    assert documents
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("folder", FOLDERS)
def test_kustomize_builds_the_same(manifests: Path, folder: str) -> None:
    """Where there is a kubectl; the tests need none."""
    if shutil.which("kubectl") is None:
        assert build_kustomization(manifests / folder)
        return
    command = ["kubectl", "kustomize", str(manifests / folder)]
    built = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def by_name(documents: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
        return {(d["kind"], d["metadata"]["name"]): d for d in documents}

    ours = by_name(build_kustomization(manifests / folder))
    assert by_name(list(yaml.safe_load_all(built))) == ours


def test_overlays_differ_in_size(manifests: Path) -> None:
    sizes = {}
    for name in ("small", "production"):
        documents = build_kustomization(manifests / "overlays" / name)
        sets = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "StatefulSet"}
        [config] = [d["data"] for d in documents if d["kind"] == "ConfigMap"]
        pod = sets["broker"]["template"]["spec"]
        sizes[name] = (
            sets["broker"]["replicas"],
            sets["controller"]["replicas"],
            config["controllers"].count("@"),
            config["replication-factor"],
            pod["topologySpreadConstraints"][0]["whenUnsatisfiable"],
        )
    assert sizes == {
        "small": (1, 1, 1, "1", "ScheduleAnyway"),
        "production": (3, 3, 3, "3", "DoNotSchedule"),
    }


# The parts of the compose specification that are used, by what their values must be.
_SERVICE_KEYS = {
    "image": str,
    "command": list,
    "expose": list,
    "ports": list,
    "volumes": list,
    "environment": dict,
    "depends_on": dict,
    "healthcheck": dict,
    "profiles": list,
    "restart": str,
    "stop_grace_period": str,
    "working_dir": str,
}


def test_the_compose_file_is_consistent() -> None:
    files = generate_compose(ClusterPlan(brokers=4, controllers=3, mirror=MIRROR))
    document = yaml.safe_load(files["compose.yaml"].text)
    assert set(document) == {"name", "services", "volumes"}
    services = document["services"]
    assert len(services) == 4 + 3 + 2
    for service in services.values():
        for key, value in service.items():
            assert isinstance(value, _SERVICE_KEYS[key]), key
        for volume in service["volumes"]:
            assert volume.partition(":")[0] in document["volumes"]
        for other, condition in service.get("depends_on", {}).items():
            assert "healthcheck" in services[other]
            assert condition == {"condition": "service_healthy"}
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert len(set(published)) == 4


def test_units_are_valid(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("shoal")
    files = generate_systemd(HOSTS, name="east", program=str(program), mirror=MIRROR)
    write_files(files, tmp_path)
    units = sorted(str(path) for path in tmp_path.glob("*.service"))
    assert [Path(unit).stem for unit in units] == [
        "shoal-broker",
        "shoal-controller",
        "shoal-mirror",
    ]
    if shutil.which("systemd-analyze") is None:
        return
    command = ["systemd-analyze", "verify", "--man=no", *units]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "shoal" in line]) == (
        0,
        [],
    )


def test_hosts_have_their_configuration() -> None:
    files = generate_systemd(HOSTS, name="east", mirror=MIRROR)
    assert "id=102\n" in files["b/controller.properties"].text
    assert "id=2\n" in files["b/broker.properties"].text
    assert "broker.rack=zone-2\n" in files["b/broker.properties"].text
    assert "broker.rack" not in files["d/broker.properties"].text
    assert "d/controller.properties" not in files
    assert [name for name in files if name.endswith("mirror.properties")] == ["d/mirror.properties"]
    alone = generate_systemd(HOSTS[:2], name="east")
    assert [name for name in alone if name.endswith("controller.properties")] == [
        "a/controller.properties"
    ]


INSTRUCTIONS = {
    "ARG",
    "FROM",
    "WORKDIR",
    "COPY",
    "RUN",
    "ENV",
    "USER",
    "EXPOSE",
    "ENTRYPOINT",
    "CMD",
}


def test_the_dockerfile_copies_what_exists_and_ignores_the_rest() -> None:
    files = generate_dockerfile(version="1", broker_port=9092, controller_port=9093)
    text = re.sub(r"^#.*\n", "", files["Dockerfile"].text, flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line.strip()]
    assert {step[0] for step in steps} <= INSTRUCTIONS
    stages = [rest.rpartition(" AS ")[2] for word, rest in steps if word == "FROM"]
    assert stages == ["wheel", "node", "full"]
    wanted = {line[1:] for line in files[".dockerignore"].text.splitlines() if line[0] == "!"}
    for word, rest in steps:
        if word == "COPY" and not rest.startswith("--from="):
            for source in shlex.split(rest)[:-1]:
                assert (ROOT / source).exists(), source
                assert source.split("/")[0] in wanted
        if word == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)  # noqa: S607 - any POSIX shell


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["compose", "--name", "Big"], "--name"),
        (["compose", "--brokers", "100"], "--brokers"),
        (["compose", "--mirror-source", "a b"], "--mirror-source"),
        (["kubernetes", "--image", "a b"], "--image"),
        (["kubernetes", "--mirror-source", "a:1", "--topics", "$(rm)"], "--topics"),
        (["systemd", "--hosts", "a,a"], "named twice"),
        (["systemd", "--hosts", "a,;"], "--hosts"),
        (["systemd", "--hosts", "a", "--program", "bin/shoal"], "relative"),
    ],
)
def test_bad_input_is_refused(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["generate", *options, "--out", str(tmp_path / "x")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_the_next_commands_are_lines_to_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["generate", "kubernetes", "--out", str(tmp_path / "k8s")]) == 0
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert "next: kubectl create namespace shoal" in lines
    assert any(line.startswith("kubectl apply -k ") for line in lines)


def test_files_that_differ_are_kept(tmp_path: Path) -> None:
    files = {"a": GeneratedFile("1"), "b/c.sh": GeneratedFile("2", is_executable=True)}
    assert write_files(files, tmp_path) == [tmp_path / "a", tmp_path / "b/c.sh"]
    assert (tmp_path / "b/c.sh").stat().st_mode & 0o111
    write_files(files, tmp_path)
    (tmp_path / "b/c.sh").write_text("mine")
    with pytest.raises(UsageError, match=r"c\.sh exists and differs"):
        write_files(files | {"new": GeneratedFile("3")}, tmp_path)
    assert not (tmp_path / "new").exists()
    write_files(files, tmp_path, replace=True)
    assert (tmp_path / "b/c.sh").read_text() == "2"
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write"):
        write_files(files, tmp_path / "file")


@pytest.mark.system("promtool")
def test_prometheus_accepts_its_configuration_and_rules(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    ports = ("--cluster", "127.0.0.1:9644,b:1", "--mirror", "127.0.0.1:9645", "--name", "east")
    token = ("--token-file", str(tmp_path / "token"))
    for command, more in (("prometheus", (*ports, *token)), ("alerts", ()), ("grafana", ())):
        out = ("--out", str(tmp_path / command))
        assert execute(["generate", command, *more, *out]) == 0
    checked = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus" / "prometheus.yml")],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    written = yaml.safe_load((tmp_path / "prometheus" / "prometheus.yml").read_text())
    targets = {job["job_name"]: job["static_configs"][0] for job in written["scrape_configs"]}
    assert targets["shoal"] == {"targets": ["127.0.0.1:9644", "b:1"], "labels": {"cluster": "east"}}
    assert set(targets) == {"shoal", "shoal-mirrors"}
    rules = (tmp_path / "alerts" / "rules.yml").read_text()
    assert rules == (ROOT / "docs" / "prometheus" / "rules.yml").read_text()
    dashboard = json.loads((tmp_path / "grafana" / "dashboards" / "shoal.json").read_text())
    assert dashboard == json.loads((ROOT / "docs" / "prometheus" / "dashboard.json").read_text())
    found = yaml.safe_load(
        (tmp_path / "grafana" / "provisioning" / "datasources" / "prometheus.yaml").read_text()
    )
    assert found["datasources"][0]["url"] == "http://127.0.0.1:9090"
    assert execute(["generate", "prometheus", "--cluster", "nowhere", "--out", str(tmp_path)]) == 2
