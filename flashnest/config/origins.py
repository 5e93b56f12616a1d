"""Where each part of a composed config came from: the override, or the file and line. For error messages only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf


@dataclass(frozen=True, slots=True)
class Origins:
    """Where the parts of a config came from.

    choices: group -> option; sources: (scheme, path) of every place that Hydra searched, in its order; overrides: the
    command line's; config_name: the primary config.
    """

    choices: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[tuple[str, str], ...] = ()
    overrides: tuple[str, ...] = ()
    config_name: str = "config"

    @classmethod
    def of(cls, hydra: DictConfig) -> Origins:
        """Read the origins from a composed config's `hydra` node."""
        runtime = hydra.runtime
        given = OmegaConf.to_container(hydra.overrides, resolve=False)  # as typed: `a=${b}` stays what it is
        assert isinstance(given, dict)
        return cls(
            choices={str(k): str(v) for k, v in runtime.choices.items() if v is not None},
            sources=tuple((str(s.schema), str(s.path)) for s in runtime.config_sources),
            overrides=tuple(str(o) for o in (*given["task"], *given["hydra"])),
            config_name=str(hydra.job.config_name),
        )

    def file_of(self, group: str) -> str | None:
        """Return the file of a group's option; None where it cannot be told."""
        option = self.choices.get(group)
        found = self._read(f"{group}/{option}") if option is not None else None
        return found and found[0]

    def describe(self, keys: Sequence[str]) -> str:
        """Return the override, or the file and line, that set the key path `keys`; "" where it cannot be told."""
        dotted = ".".join(keys)
        for override in self.overrides:
            name = override.lstrip("+~").partition("=")[0]
            if name not in self.choices and (name == dotted or dotted.startswith(name + ".")):
                return f"override {override!r}"
        group = keys[0] if keys else ""
        option = self.choices.get(group)
        inner = keys[1:] if option is not None else keys
        found = self._read(f"{group}/{option}" if option is not None else self.config_name)
        if found is None:
            return ""
        path, text = found
        line = line_of_key(text, inner)
        if not line and option is None:
            return ""
        return f"{path}:{line}" if line else path

    def _read(self, name: str) -> tuple[str, str] | None:
        for scheme, where in self.sources:
            root = resources.files(where.replace("/", ".")) if scheme == "pkg" and where else Path(where)
            file = root.joinpath(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
            if scheme in ("pkg", "file") and file.is_file():
                return str(file), file.read_text(encoding="utf-8")
        return None


def line_of_key(text: str, keys: Sequence[str]) -> int:
    """Return the 1-based line on which the key path `keys` stands in a YAML text, 0 where it does not."""
    node = yaml.compose(text, yaml.SafeLoader)
    line = 0
    for key in keys:
        if not isinstance(node, yaml.MappingNode):
            return line
        match = next((pair for pair in node.value if pair[0].value == key), None)
        if match is None:
            return 0
        line, node = match[0].start_mark.line + 1, match[1]
    return line
