"""An allocator to learn from: FPGAs, each on one NUMA node, whole ones only. See plugins/README.md."""

from example_device.allocator import FpgaAllocator, create

__all__ = ["FpgaAllocator", "create"]
