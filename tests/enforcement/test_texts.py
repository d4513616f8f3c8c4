"""Messages with text that is not UTF-8: who asks with one is told so, and what is listed with one is seen."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from qrm.enforcement.texts import lenient, strict
from qrm.errors import BadRequest
from qrm.wire import cri_pb2 as cri


def marked(mark: str = "MARK") -> cri.CreateContainerRequest:
    """A request with `mark` in an annotation of its pod, between other things."""
    made = cri.CreateContainerRequest(pod_sandbox_id="s")
    made.config.linux.resources.cpu_shares = 1024
    made.config.envs.add(key="K", value=b"\xff")
    made.config.args.append(b"\xff")
    made.sandbox_config.annotations["a"] = mark
    made.sandbox_config.linux.cgroup_parent = "/kubepods/é"
    return made


def spoiled(bad: bytes = b"M\xe9\xffK") -> bytes:
    """`marked`, serialised, with `bad` for its mark."""
    return marked("M" * len(bad)).SerializeToString().replace(b"M" * len(bad), bad)


def test_a_request_is_refused_with_field_and_text() -> None:
    """The author of a Latin-1 annotation is told where it is."""
    with pytest.raises(BadRequest, match=r"^sandbox_config\.annotations\[a\] has b'M\\xe9\\xffK', which is not UTF-8"):
        strict(cri.CreateContainerRequest, spoiled())


def test_what_is_listed_is_read_without_the_text() -> None:
    """Everything else in the message is as it was, and of the text what can be read."""
    assert lenient(cri.CreateContainerRequest, spoiled()) == marked("M??K")


def test_what_is_right_is_read_as_it_is() -> None:
    """UTF-8 of any length, and bytes where bytes may be."""
    assert strict(cri.CreateContainerRequest, marked().SerializeToString()) == marked()
    assert lenient(cri.CreateContainerRequest, marked("é€😀").SerializeToString()) == marked("é€😀")


@given(st.binary(max_size=300), st.integers(0, 60), st.integers(0, 60))
def test_what_is_no_message_is_a_decode_error(noise: bytes, start: int, end: int) -> None:
    """Whatever comes, cut and spoiled at any place, is read, or it is an error of one of two kinds."""
    whole = spoiled(noise or b"\xff")
    for data in (noise, whole[:start], whole[start:], whole[:start] + noise + whole[end:]):
        for read in (strict, lenient):
            try:
                read(cri.CreateContainerRequest, data)
            except (BadRequest, DecodeError):
                continue
