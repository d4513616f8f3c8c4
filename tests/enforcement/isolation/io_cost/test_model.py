"""The kernel's lines, and what is merged into them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrm.config import parse
from qrm.enforcement.isolation.io_cost.model import (
    Model,
    ModelLine,
    Params,
    Qos,
    QosLine,
    format_model,
    format_qos,
    merge,
    parse_models,
    parse_qos,
)
from qrm.enforcement.isolation.io_cost.table import TABLE, UNJUDGED
from qrm.errors import ConfigError, ParseError

COUNTS = st.integers(0, (1 << 64) - 1)
MODELS = st.builds(Model, *[COUNTS] * 6)
SHARES = st.integers(0, 100_00)
SPEEDS = st.integers(1_00, 10_000_00)
LATENCIES = st.integers(0, (1 << 32) - 1)
QOS = st.builds(Qos, rpct=SHARES, rlat=LATENCIES, wpct=SHARES, wlat=LATENCIES, min=SPEEDS, max=SPEEDS)
MODEL_LINES = st.builds(ModelLine, user=st.just(True), model=MODELS)
QOS_LINES = st.builds(QosLine, enable=st.booleans(), user=st.just(True), qos=QOS)

MODEL_TEXT = """\
8:0 ctrl=auto model=linear rbps=488636629 rseqiops=8932 rrandiops=8518 wbps=427891549 wseqiops=28755 wrandiops=21940
259:1 ctrl=user model=linear rbps=1 rseqiops=2 rrandiops=3 wbps=4 wseqiops=5 wrandiops=6
"""
QOS_TEXT = """\
8:0 enable=0 ctrl=auto rpct=0.00 rlat=25000 wpct=0.00 wlat=25000 min=1.00 max=10000.00
259:1 enable=1 ctrl=user rpct=99.05 rlat=1 wpct=5.50 wlat=2 min=50.00 max=150.25
"""


@given(st.dictionaries(st.sampled_from(["8:0", "259:1", "254:16"]), MODEL_LINES))
def test_model_round_trip(lines: dict[str, ModelLine]) -> None:
    """What is written reads back as the same."""
    assert parse_models("".join(f"{number} {format_model(line)}\n" for number, line in lines.items())) == lines


@given(st.dictionaries(st.sampled_from(["8:0", "259:1", "254:16"]), QOS_LINES))
def test_qos_round_trip(lines: dict[str, QosLine]) -> None:
    """What is written reads back as the same, to the hundredth of a percent."""
    assert parse_qos("".join(f"{number} {format_qos(line)}\n" for number, line in lines.items())) == lines


def test_the_kernels_text() -> None:
    """Lines as Linux 6.12 prints them; what is the kernel's own is written back as such."""
    models, qos = parse_models(MODEL_TEXT), parse_qos(QOS_TEXT)
    assert models["259:1"] == ModelLine(True, Model(1, 2, 3, 4, 5, 6))
    assert qos["259:1"] == QosLine(True, True, Qos(99_05, 1, 5_50, 2, 50_00, 150_25))
    assert (format_model(models["8:0"]), format_qos(qos["8:0"])) == ("ctrl=auto", "enable=0 ctrl=auto")
    assert f"259:1 {format_qos(qos['259:1'])}" == QOS_TEXT.splitlines()[1]
    assert f"259:1 {format_model(models['259:1'])}" == MODEL_TEXT.splitlines()[1]


@pytest.mark.parametrize("text", ["8:0", "8:0 rbps=x", MODEL_TEXT.replace("rrandiops=3", "rrandiops=-3")])
def test_another_format(text: str) -> None:
    """Text that is not the kernel's is an error that quotes it."""
    with pytest.raises(ParseError, match="which is no number, in '8:0"):
        parse_models(text)


def _merge(text: str, base: Params | None) -> Params:
    device = parse(f'[io_cost.devices."/dev/sda"]\n{text}').io_cost.devices["/dev/sda"]
    return merge(base, device.model, device.qos, UNJUDGED)


def test_configuration_over_table() -> None:
    """What the configuration says is taken, and all else is the table's."""
    base = TABLE["hdd"]
    merged = _merge("model = { wbps = 7 }\nqos = { wpct = 33.333, max = 120 }", base)
    assert (merged.model.wbps, merged.qos.wpct, merged.qos.max) == (7, 33_33, 120_00)
    assert (merged.model.rbps, merged.qos.wlat, merged.qos.min) == (base.model.rbps, base.qos.wlat, base.qos.min)
    assert _merge("", base) == base


def test_a_whole_model_needs_no_table() -> None:
    """For a disk of which nothing is known, the configuration has to say all of the model."""
    whole = "model = { rbps = 1, rseqiops = 2, rrandiops = 3, wbps = 4, wseqiops = 5, wrandiops = 6 }"
    assert _merge(whole, None) == Params(Model(1, 2, 3, 4, 5, 6), UNJUDGED)
    with pytest.raises(ConfigError, match="its model lacks rseqiops, wbps, wseqiops, wrandiops"):
        _merge("model = { rbps = 1, rrandiops = 3 }", None)


def test_bounds_that_cross() -> None:
    """Min above max, which the kernel refuses, is told with both."""
    with pytest.raises(ConfigError, match=r"qos.min is 50.00 and above qos.max, which is 20.00"):
        _merge("qos = { max = 20 }", TABLE["nvme"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model = { rbsp = 1 }", "unknown field `rbsp`, known are rbps, rseqiops, rrandiops, wbps"),
        ("qos = { rlatency = 1 }", "unknown field `rlatency`, known are rpct, rlat, wpct, wlat, min, max"),
        ("model = { rbps = 0 }", "/dev/sda.model.rbps = 0: Expected `int` >= 1"),
        ("qos = { rpct = 101 }", "qos.rpct = 101: Expected `float` <= 100"),
        ("qos = { min = 0.5 }", "qos.min = 0.5: Expected `float` >= 1"),
        ('kind = "floppy"', "kind = 'floppy': must be one of \"\", hdd, sata_ssd, nvme, virtio"),
    ],
)
def test_mistakes(text: str, said: str) -> None:
    """A wrong key or value in the file is an error that says what is known."""
    with pytest.raises(ConfigError) as caught:
        _merge(text, None)
    assert said in caught.value.message


@pytest.mark.parametrize("params", TABLE.values(), ids=TABLE)
def test_table(params: Params) -> None:
    """The kernel takes each entry, and bandwidth and operations in it are of the same disk."""
    assert params.qos.min <= params.qos.max
    for rate, *operations in (
        (params.model.rbps, params.model.rseqiops, params.model.rrandiops),
        (params.model.wbps, params.model.wseqiops, params.model.wrandiops),
    ):
        assert rate >= 4096 * max(operations) * 0.95
