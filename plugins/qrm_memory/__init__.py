"""The built-in memory allocator: NUMA nodes for the memory and hugepages of containers, counted in bytes."""

from qrm_memory.allocator import MemoryAllocator, create

__all__ = ["MemoryAllocator", "create"]
