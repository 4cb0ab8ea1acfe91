"""Resolves config providers in a `.properties` file: `${file:secrets.properties:password}`.

    config.providers = file, env
    config.providers.file.class = org.apache.kafka.common.config.provider.FileConfigProvider
    sasl.password = ${file:/etc/kafka/secrets.properties:password}

Rules, as in Kafka:
- `file` reads a key of another `.properties` file, `directory` reads a whole file of a folder,
  `env` reads an environment variable. `config.providers` declares the names in use; a class
  decides what a name does.
- `allowed.paths` and `allowlist.pattern` limit what a provider may read.
Unlike Kafka, a reference that cannot be resolved is an error: Kafka would use the text
`${…}` itself as the password.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from shoal.model.errors import ConfigError

_DECLARED: Final = "config.providers"
_REFERENCE: Final = re.compile(r"\$\{(?P<name>[^}:]*):(?:(?P<path>[^}]*):)?(?P<key>[^}:]*)\}")
_PACKAGE: Final = "org.apache.kafka.common.config.provider."
_CLASSES: Final = {
    f"{_PACKAGE}FileConfigProvider": "file",
    f"{_PACKAGE}DirectoryConfigProvider": "directory",
    f"{_PACKAGE}EnvVarConfigProvider": "env",
}

Load = Callable[[Path], Mapping[str, str]]


def resolve_references(pairs: Mapping[str, str], load: Load) -> dict[str, str]:
    """Replace each reference by its value and drop the declarations of providers.

    `load` reads a `.properties` file.
    """
    if not any("${" in value for value in pairs.values()) and _DECLARED not in pairs:
        return dict(pairs)
    providers = _Providers(pairs, load)
    return {
        key: _REFERENCE.sub(lambda found, key=key: providers.resolve(key, found), value)  # type: ignore[misc]
        for key, value in pairs.items()
        if key != _DECLARED and not key.startswith(f"{_DECLARED}.")
    }


class _Providers:
    def __init__(self, pairs: Mapping[str, str], load: Load) -> None:
        self._pairs = pairs
        self._load = load
        self._files: dict[Path, Mapping[str, str]] = {}
        declared = pairs.get(_DECLARED, "").split(",")
        self._kinds = {name: self._find_kind(name) for each in declared if (name := each.strip())}

    def _find_kind(self, name: str) -> str:
        key = f"{_DECLARED}.{name}.class"
        kind = _CLASSES.get(self._pairs.get(key, "").strip())
        if kind is None:
            raise ConfigError(
                f"{key} = {self._pairs.get(key, '')!r} is not a known config provider",
                remedy=f"use one of {', '.join(_CLASSES)}",
            )
        return kind

    def _param(self, name: str, param: str) -> str:
        return self._pairs.get(f"{_DECLARED}.{name}.param.{param}", "").strip()

    def resolve(self, key: str, found: re.Match[str]) -> str:
        name, path, wanted = found["name"], found["path"] or "", found["key"]
        kind = self._kinds.get(name)
        if kind is None:
            raise ConfigError(
                f"{key} refers to the config provider {name!r}, which is not declared",
                remedy=f"add {_DECLARED} = {name} and {_DECLARED}.{name}.class = … to the file",
            )
        if kind == "env":
            value = self._read_env(name, wanted)
        elif kind == "directory":
            value = self._read_text(name, Path(path) / wanted)
        else:
            value = self._read_properties(name, Path(path)).get(wanted)
        if value is None:
            where = f"{path}:{wanted}" if path else wanted
            raise ConfigError(
                f"{key} refers to {where}, which the config provider {name!r} does not have",
                remedy="check the path and the key",
            )
        return value

    def _read_env(self, name: str, wanted: str) -> str | None:
        pattern = self._param(name, "allowlist.pattern")
        if pattern and not re.fullmatch(pattern, wanted):
            raise ConfigError(
                f"the environment variable {wanted} is not in allowlist.pattern of the config "
                f"provider {name!r}",
                remedy=f"change {_DECLARED}.{name}.param.allowlist.pattern",
            )
        return os.environ.get(wanted)

    def _read_text(self, name: str, path: Path) -> str | None:
        self._check_allowed(name, path)
        try:
            return path.read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from error

    def _read_properties(self, name: str, path: Path) -> Mapping[str, str]:
        self._check_allowed(name, path)
        if path not in self._files:
            self._files[path] = self._load(path)
        return self._files[path]

    def _check_allowed(self, name: str, path: Path) -> None:
        allowed = [each for each in self._param(name, "allowed.paths").split(",") if each.strip()]
        real = path.resolve()
        if allowed and not any(
            real.is_relative_to(Path(each.strip()).resolve()) for each in allowed
        ):
            raise ConfigError(
                f"{path} is not below the allowed.paths of the config provider {name!r}",
                remedy=f"add its folder to {_DECLARED}.{name}.param.allowed.paths",
            )
