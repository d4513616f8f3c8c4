"""The transport stands what nobody should send it: a small part of what `tests.shim.frames.fuzz` does for long."""

from __future__ import annotations

import asyncio
from pathlib import Path

import uvloop

from tests.shim.frames.fuzz import Scene, fuzz, on_stage

EXAMPLES = 40


def test_it_stands_anything(tmp_path: Path) -> None:
    """No crash, no hang, no descriptor or task left behind, and a bystander's calls are answered, on both loops."""

    def act(scene: Scene) -> None:
        fuzz(scene.play, EXAMPLES)
        assert scene.done >= EXAMPLES

    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        on_stage(act, tmp_path, factory)
