"""Generate the Python modules and type stubs of protos/ into the package tree; also hatchling's build hook.

Generated code is built, not committed. `python protos/generate.py` does it by hand.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def generate(root: Path) -> None:
    """Write `qrm/wire/*_pb2.py` and `.pyi` under `root`; raise RuntimeError when protoc refuses a file."""
    protos = root / "protos"
    sources = sorted(str(path) for path in protos.rglob("*.proto"))
    wire = root / "qrm" / "wire"
    wire.mkdir(exist_ok=True)
    (wire / "__init__.py").write_text('"""Generated from protos/: do not edit."""\n')
    well_known = str(files("grpc_tools") / "_proto")
    arguments = ["protoc", f"-I{protos}", f"-I{well_known}", f"--python_out={root}", f"--pyi_out={root}", *sources]
    if protoc.main(arguments) != 0:
        raise RuntimeError(f"protoc failed on {', '.join(sources)}")


class ProtoBuildHook(BuildHookInterface[Any]):
    """Runs before hatchling collects files, for wheels and for editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        generate(Path(self.root))


if __name__ == "__main__":
    generate(Path(__file__).resolve().parent.parent)
    sys.exit(0)
