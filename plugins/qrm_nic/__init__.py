"""The built-in NIC allocator: each pod that asks for bandwidth on one NIC, each NIC with no more than it can carry."""

from qrm_nic.allocator import NicAllocator, create

__all__ = ["NicAllocator", "create"]
