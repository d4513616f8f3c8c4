"""Reading the configuration file: a mistake in it is an error that names the field and the value."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from qrm.config.sections import Config
from qrm.errors import ConfigError

_OTHERS = tuple(map(Path, ("/var/run", "/var/lib", "/var/tmp")))  # noqa: S108 - to refuse it
"""Folders of everybody that are not at the root."""


def load(path: Path) -> Config:
    """Read and check the file at `path`.

    Raises:
        ConfigError: it cannot be read, is not TOML (with the line), or a value is wrong (with its field).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", hint="name an existing file with --config") from error
    return parse(text, str(path))


def parse(text: str, source: str = "configuration") -> Config:
    """Check TOML `text`; `source` names it in errors. Raises ConfigError as `load` does."""
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers too long and tables too deep for Python to read
        raise ConfigError(f"{source} is not TOML: {error}") from error
    if path := _with_nul(values):
        raise ConfigError(f"{source}: {path}: has a NUL in it", hint="leave it out: nothing can be called so")
    try:
        config = msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        located = _located(str(error), values)
        raise ConfigError(f"{source}: {located}", hint="qrm.toml documents every setting") from error
    if config.metrics.listen:
        split_address(config.metrics.listen)
    _check(config)
    return config


def _check_paths(config: Config) -> None:
    """That paths are absolute, and sockets no folders."""
    paths = {
        "shim.socket": config.shim.socket,
        "shim.admin_socket": config.shim.admin_socket,
        "shim.pod_resources_socket": config.shim.pod_resources_socket,
        "state.directory": config.state.directory,
        **{f"host.{name}": getattr(config.host, name) for name in config.host.__struct_fields__},
    }
    for name, path in paths.items():
        if not path.startswith("/"):
            raise ConfigError(f"{name} = {path!r}: not an absolute path", hint="write one that begins with /")
        if name.startswith("shim.") and path.endswith("/"):
            raise ConfigError(f"{name} = {path!r}: a folder, not a socket", hint="write the name of a socket in it")
        if name.startswith("shim.") and (len(Path(path).parts) < 4 or Path(path).parent in _OTHERS):
            hint = "qrm closes its sockets' folder to everybody else: write /run/qrm/qrm.sock, or another of its own"
            raise ConfigError(f"{name} = {path!r}: in a folder that others need", hint=hint)


def _check(config: Config) -> None:
    """What no type can say."""
    _check_paths(config)
    if str(socket_path(config.runtime.endpoint)) in (config.shim.socket, config.shim.admin_socket):
        raise ConfigError(
            f"runtime.endpoint = {config.runtime.endpoint!r}: that is a socket of qrm itself",
            hint="name the container runtime's, such as unix:///run/containerd/containerd.sock",
        )
    if "cpu" not in config.allocators and "cpu" not in config.plugins.required:
        raise ConfigError("allocators: cpu is missing", hint="write [allocators.cpu], with or without settings in it")
    for name, profile in config.profiles.items():
        for key, classes in (("rdt", config.rdt.classes), ("network", config.network.classes)):
            value = getattr(profile, key)
            if value and value not in classes:
                raise ConfigError(
                    f"profiles.{name}.{key} = {value!r}: no class of that name",
                    hint=f"write [{key}.classes.{value}], or one of {', '.join(classes)}",
                )
    for name in ("directory", "registration_socket"):
        if (path := getattr(config.plugins, name)) and not path.startswith("/"):
            raise ConfigError(f"plugins.{name} = {path!r}: not an absolute path", hint="write one that begins with /")


def _with_nul(value: Any) -> str:
    """The keys to a text with a NUL in it, which is no path, name or address; "" where there is none."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in members:
        if "\0" in str(key) or (isinstance(each, str) and "\0" in each):
            return str(key).replace("\0", "\\0")
        if inner := _with_nul(each):
            return f"{key}.{inner}"
    return ""


def _located(message: str, values: dict[str, Any]) -> str:
    """Msgspec's message with the field, as it is written in the file, and its value in front."""
    found = re.fullmatch(r"(?P<what>.*?) - at (?P<key>`key` in )?`\$\.?(?P<where>.*)`", message, re.DOTALL)
    if found is None:
        return message
    path = _path(found["where"] + ("[...]" if found["key"] else ""), values)
    value: Any = values
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    shown = "" if value is None or isinstance(value, dict) else f" = {value!r}"
    where, kind = ".".join(path), _type_at(found["where"])
    if get_origin(kind) is Literal:
        choices = ", ".join(each or '""' for each in get_args(kind))
        return f"{where}{shown}: must be one of {choices}"
    fields = getattr(kind, "__struct_fields__", ())
    known = f", known are {', '.join(fields)}" if fields and "unknown field" in found["what"] else ""
    return f"{where}{shown}: {found['what']}{known}"


def _path(where: str, values: dict[str, Any]) -> list[str]:
    """The keys to a wrong value. Msgspec has [...] in place of a name in a table: it is found by trying each alone."""
    path: list[str] = []
    table: Any = values
    for part in re.findall(r"\[\.\.\.\]|[^.\[]+(?:\[\d+\])?", where):
        if part == "[...]" and isinstance(table, dict):
            part = next((name for name in table if not _converts({name: table[name]}, path)), part)
        path.append(part)
        table = table.get(part) if isinstance(table, dict) else None
    return path


def _converts(table: dict[str, Any], path: list[str]) -> bool:
    """Whether a file with nothing but `table` at `path` is right."""
    for key in reversed(path):
        table = {key: table}
    try:
        msgspec.convert(table, Config)
    except msgspec.ValidationError:
        return False
    return True


def _type_at(where: str) -> Any:
    """The type of what stands at `section.key`; "[...]" behind a key means any entry of its table. None: unknown."""
    kind: Any = Config
    for part in re.findall(r"\w+|\[\.\.\.\]", where):
        if part == "[...]":
            # A table is dict[str, ENTRY]; one that may be left out is that or UNSET.
            table = next((each for each in (kind, *get_args(kind)) if get_origin(each) is dict), None)
            kind = get_args(table)[-1] if table else None
        else:
            kind = get_type_hints(kind).get(part) if isinstance(kind, type) else None
    return kind


def split_address(text: str) -> tuple[str, int]:
    """HOST:PORT as a pair; IPv6 hosts stand in brackets. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise ConfigError(
            f"metrics.listen: {text!r} is not HOST:PORT", hint='for example "127.0.0.1:9317", "" for none'
        )
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - an empty host means all of them, as elsewhere


def socket_path(endpoint: str) -> Path:
    """The path behind `unix:///path`, `unix:/path` or `/path`; raises ConfigError for anything else."""
    path = endpoint.removeprefix("unix://") if endpoint.startswith("unix://") else endpoint.removeprefix("unix:")
    if not path.startswith("/"):
        raise ConfigError(f"runtime.endpoint: {endpoint!r} is not a unix socket", hint="write unix:///path/to.sock")
    return Path(path)
