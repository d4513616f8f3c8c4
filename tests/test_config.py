"""The configuration file: what is accepted, how mistakes are told, and the file that is installed."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import msgspec
import pytest
from qrm_cpu.settings import Settings, read_settings

from qrm.config import RELOADABLE, Config, load, parse, socket_path, split_address
from qrm.errors import ConfigError

INSTALLED = Path(__file__).parents[1] / "systemd" / "qrm.toml"


def _refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text, "qrm.toml")
    return caught.value


def test_empty() -> None:
    """An empty file is all defaults."""
    assert parse("") == Config()


def test_values() -> None:
    """What a file says is taken, and what it leaves out is as without it."""
    config = parse(
        '[shim]\nbudget_seconds = 3\n[qos]\ndefault_level = "reclaimed_cores"\n[allocators.cpu]\nreserved = 2\n'
    )
    assert config.shim.budget_seconds == 3.0
    assert config.shim.socket == Config().shim.socket
    assert config.qos.default_level == "reclaimed_cores"
    assert config.allocators == {"cpu": {"reserved": 2}}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[nonsense]\n", "nonsense"),
        ("[shim]\nsokket = 'x'\n", "sokket"),
        ("[shim]\nsokket = 'x'\n", "shim"),
    ],
)
def test_unknown_key(text: str, field: str) -> None:
    """A key that does not exist is an error that names it and its section."""
    error = _refused(text)
    assert field in error.message
    assert error.message.startswith("qrm.toml: ")


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("[shim]\nsocket = 1\n", "shim.socket", "1"),
        ("[shim]\nbudget_seconds = 0\n", "shim.budget_seconds", "0"),
        ("[rdt.classes.a]\n[rdt.classes.b]\nl3 = '300%'\n", "rdt.classes.b.l3", "'300%'"),
        ("[profiles.p.io_max.'/dev/x']\nrbps = -1\n", "profiles.p.io_max./dev/x.rbps", "-1"),
        ("[profiles.p.io_max.'/dev/x']\nriops = 4294967295\n", "profiles.p.io_max./dev/x.riops", "4294967295"),
        ("[profiles.p.io_max.'/dev/x']\nrbps = 1\n", "profiles.p.io_max./dev/x", "rbps is 1"),
        ("[rdt.classes.a]\n[rdt.classes.'b/c']\n", "rdt.classes.b/c", "regex"),
        ("[shim]\nbudget_seconds = '10'\n", "shim.budget_seconds", "'10'"),
        ("[shim]\nmax_message_bytes = 1000\n", "shim.max_message_bytes", "1000"),
        ("[qos]\ndefault_level = 'gold'\n", "qos.default_level", "'gold'"),
        ("[qos]\nguaranteed_whole_cpus = 'system_cores'\n", "qos.guaranteed_whole_cpus", "'system_cores'"),
        ("[log]\nlevel = 'loud'\n", "log.level", "'loud'"),
        ("upkeep = 3\n", "upkeep", "3"),
        ("[allocators]\ncpu = 3\n", "allocators", "`int`"),
        ("[shim]\nsocket = '/run/qrm/'\n", "", "shim.socket = '/run/qrm/'"),
        ("[shim]\nsocket = '/run/qrm.sock'\n", "", "shim.socket = '/run/qrm.sock': in a folder that others need"),
        ("[shim]\nadmin_socket = '/var/run/a.sock'\n", "", "shim.admin_socket = '/var/run/a.sock': in a folder"),
        ('[state]\ndirectory = "/a\\u0000"\n', "state.directory", "NUL"),
        ("[plugins]\nrequired = ['cpu', \"\\u0000\"]\n", "plugins.required.1", "NUL"),
        ("[plugins]\nallowed_uid = -1\n", "plugins.allowed_uid", "-1"),
        (f"[profiles.p]\nmemory_high = '{'9' * 5000}'\n", "profiles.p.memory_high", "regex"),
        (f"[rdt.classes.p]\nl3 = '0x{'f' * 5000}'\n", "rdt.classes.p.l3", "regex"),
    ],
)
def test_wrong_value(text: str, field: str, value: str) -> None:
    """A value that cannot be used is an error that names the field and the value, and has a remedy."""
    error = _refused(text)
    assert not field or error.message.startswith(f"qrm.toml: {field}")
    assert value in error.message.removeprefix(f"qrm.toml: {field}")
    assert error.hint


def test_choices() -> None:
    """Where a setting has only some values, the error lists them."""
    assert "shared_cores, dedicated_cores" in _refused("[qos]\nguaranteed_whole_cpus = 'gold'\n").message


def test_not_toml() -> None:
    """A file that is not TOML is an error with the line."""
    assert re.search(r"qrm.toml is not TOML: .*line 3", _refused("[shim]\n\nsocket = \n").message)


@pytest.mark.parametrize("text", [f"a = {'9' * 5000}", f"a = {'[' * 5000}", f"a = {'{a=' * 5000}", "a = 1\0"])
def test_beyond_what_is_read(text: str) -> None:
    """Numbers and tables that Python gives up on are errors of the file like any other."""
    assert _refused(text).message.startswith("qrm.toml is not TOML: ")


@pytest.mark.parametrize("content", [None, b"\xff\xfe", "folder"])
def test_unreadable(tmp_path: Path, content: bytes | str | None) -> None:
    """A file that is missing, or not text, or not a file, is an error that names it."""
    path = tmp_path / "qrm.toml"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.mkdir()
    with pytest.raises(ConfigError, match=re.escape(f"cannot read {path}")) as caught:
        load(path)
    assert "--config" in caught.value.hint


def test_load(tmp_path: Path) -> None:
    """A file is read as UTF-8, and errors in it name it."""
    path = tmp_path / "qrm.toml"
    path.write_text('[state]\ndirectory = "/var/lib/größe"\n', encoding="utf-8")
    assert load(path).state.directory == "/var/lib/größe"
    path.write_text("[state]\ndirectory = 1\n")
    with pytest.raises(ConfigError, match=re.escape(f"{path}: state.directory")):
        load(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9317", ("127.0.0.1", 9317)),
        ("[::1]:80", ("::1", 80)),
        ("localhost:0", ("localhost", 0)),
        (":9317", ("0.0.0.0", 9317)),  # noqa: S104 - what it means, not what is listened on
    ],
)
def test_address(text: str, expected: tuple[str, int]) -> None:
    """An address is a host and a port; no host means all of them."""
    assert split_address(text) == expected


@pytest.mark.parametrize(
    "text",
    ["9317", "localhost", "localhost:", "localhost:http", "localhost:65536", "host:-1", "h:१", "h:" + "9" * 5000],
)
def test_bad_address(text: str) -> None:
    """A metrics address without a usable port is an error that names field, value and remedy."""
    error = _refused(f'[metrics]\nlisten = "{text}"\n')
    assert error.message == f"metrics.listen: {text!r} is not HOST:PORT"
    assert "127.0.0.1:9317" in error.hint


def test_no_metrics() -> None:
    """An empty address switches the page off."""
    assert parse('[metrics]\nlisten = ""\n').metrics.listen == ""


@pytest.mark.parametrize("endpoint", ["unix:///run/c.sock", "unix:/run/c.sock", "/run/c.sock"])
def test_endpoint(endpoint: str) -> None:
    """The runtime's endpoint may be spelled in any of the usual ways."""
    assert socket_path(parse(f'[runtime]\nendpoint = "{endpoint}"\n').runtime.endpoint) == Path("/run/c.sock")


@pytest.mark.parametrize("endpoint", ["", "tcp://127.0.0.1:1", "unix://run/c.sock", "run/c.sock", "npipe:////./pipe/c"])
def test_bad_endpoint(endpoint: str) -> None:
    """What is no unix socket with an absolute path is an error that names field, value and remedy."""
    error = _refused(f'[runtime]\nendpoint = "{endpoint}"\n')
    assert error.message == f"runtime.endpoint: {endpoint!r} is not a unix socket"
    assert "unix:///path/to.sock" in error.hint


def test_immutable() -> None:
    """Nobody can change a setting behind another's back."""
    with pytest.raises(AttributeError):
        Config().shim.socket = "x"  # type: ignore[misc]


def test_reloadable_sections() -> None:
    """The sections that a reload applies exist, and those that other parts hold on to are not among them."""
    assert set(RELOADABLE) <= set(Config.__struct_fields__)
    assert not {"runtime", "shim", "state", "host", "metrics", "allocators"} & set(RELOADABLE)


def _fields() -> list[tuple[str, str]]:
    sections = [(name, getattr(Config(), name)) for name in Config.__struct_fields__]
    return [
        (name, field)
        for name, section in sections
        if not isinstance(section, dict)
        for field in section.__struct_fields__
        if getattr(section, field) is not None
    ]


def test_installed_file_has_the_defaults() -> None:
    """The installed file changes nothing, and its every section and setting is there with its default."""
    assert load(INSTALLED) == Config()
    said, defaults = tomllib.loads(INSTALLED.read_text()), json.loads(msgspec.json.encode(Config()))
    assert set(said) == set(Config.__struct_fields__)
    for section, field in _fields():
        if field != "classes":  # which are shown as far as they say something
            assert said[section][field] == defaults[section][field]


def test_installed_file_explains() -> None:
    """Every setting of the installed file has a comment above it."""
    lines = INSTALLED.read_text().splitlines()
    for _, field in _fields():
        number = next(number for number, line in enumerate(lines) if re.match(rf"{field}( = |\.)", line))
        assert lines[number - 1].startswith("# "), field


def test_installed_file_shows_what_has_no_default() -> None:
    """A setting that is unset by default stands there as a comment."""
    text = INSTALLED.read_text()
    sections = [getattr(Config(), name) for name in Config.__struct_fields__]
    sections = [each for each in sections if not isinstance(each, dict)]
    unset = [field for each in sections for field in each.__struct_fields__ if getattr(each, field) is None]
    assert unset == ["allowed_uid"]
    assert all(f"\n# {field} = " in text for field in unset)


def test_installed_file_has_the_allocators_settings() -> None:
    """The settings of the CPU allocator are there as comments, with their defaults."""
    text = INSTALLED.read_text()
    _, _, section = text.partition("[allocators.cpu]\n")
    shown = tomllib.loads("\n".join(re.findall(r"^# (\w+ = \S+)$", section, re.MULTILINE)))
    assert shown == msgspec.to_builtins(Settings())
    assert read_settings(shown) == Settings()
