"""References in `.properties` files: resolved as Kafka does, or refused; never used as text."""

from pathlib import Path

import pytest

from shoal.client.properties import load_properties
from shoal.model.errors import ConfigError

PACKAGE = "org.apache.kafka.common.config.provider"


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "secrets.properties").write_text("password = s3cr=t\nuser=me\n")
    (tmp_path / "token").write_text("from a folder")
    monkeypatch.setenv("SHOAL_TEST_PASSWORD", "from the environment")
    return tmp_path


def load(folder: Path, *lines: str) -> dict[str, str]:
    path = folder / "client.properties"
    path.write_text(
        "\n".join(
            (
                "config.providers = file, dir, env",
                f"config.providers.file.class = {PACKAGE}.FileConfigProvider",
                f"config.providers.dir.class = {PACKAGE}.DirectoryConfigProvider",
                f"config.providers.env.class = {PACKAGE}.EnvVarConfigProvider",
                *lines,
            )
        )
    )
    return load_properties(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${file:FOLDER/secrets.properties:password}", "s3cr=t"),
        ("${dir:FOLDER:token}", "from a folder"),
        ("${env:SHOAL_TEST_PASSWORD}", "from the environment"),
        (
            'user="${file:FOLDER/secrets.properties:user}" p="${env:SHOAL_TEST_PASSWORD}";',
            'user="me" p="from the environment";',
        ),
        ("plain", "plain"),
        ("a$b{c}", "a$b{c}"),
    ],
)
def test_references_are_replaced(secrets: Path, text: str, value: str) -> None:
    found = load(secrets, "key = " + text.replace("FOLDER", str(secrets)))
    assert found == {"key": value}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["key = ${vault:path:x}"], "key refers to the config provider 'vault', which is not"),
        (["key = ${file:FOLDER/secrets.properties:nothing}"], "does not have"),
        (["key = ${file:FOLDER/absent.properties:x}"], "cannot read"),
        (["key = ${dir:FOLDER:absent}"], "does not have"),
        (["key = ${env:SHOAL_TEST_ABSENT}"], "does not have"),
        (
            [
                "config.providers.dir.param.allowed.paths = FOLDER/other",
                "key = ${dir:FOLDER:token}",
            ],
            "is not below the allowed.paths",
        ),
        (
            ["config.providers.env.param.allowlist.pattern = MY_.*", "key = ${env:HOME}"],
            "not in allowlist.pattern",
        ),
        (["config.providers.file.class = com.acme.Vault"], "is not a known config provider"),
    ],
)
def test_what_cannot_be_resolved_is_refused(secrets: Path, lines: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(secrets, *(line.replace("FOLDER", str(secrets)) for line in lines))
