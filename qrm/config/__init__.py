"""The configuration file: TOML, checked as a whole. An unknown key or a wrong value is an error that names it."""

from qrm.config.base import Mode, Section
from qrm.config.isolation import (
    IoCostDevice,
    IoCostModel,
    IoCostQos,
    IoCostSection,
    IoLimits,
    IsolationSection,
    NetworkClass,
    NetworkSection,
    Profile,
    RdtClass,
    RdtSection,
)
from qrm.config.load import load, parse, socket_path, split_address
from qrm.config.sections import (
    RELOADABLE,
    Config,
    HostSection,
    KubeletSection,
    LogSection,
    MetricsSection,
    PluginsSection,
    RuntimeSection,
    ShimSection,
    StateSection,
)

__all__ = [
    "RELOADABLE",
    "Config",
    "HostSection",
    "IoCostDevice",
    "IoCostModel",
    "IoCostQos",
    "IoCostSection",
    "IoLimits",
    "IsolationSection",
    "KubeletSection",
    "LogSection",
    "MetricsSection",
    "Mode",
    "NetworkClass",
    "NetworkSection",
    "PluginsSection",
    "Profile",
    "RdtClass",
    "RdtSection",
    "RuntimeSection",
    "Section",
    "ShimSection",
    "StateSection",
    "load",
    "parse",
    "socket_path",
    "split_address",
]
