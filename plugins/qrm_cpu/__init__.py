"""The built-in CPU allocator: exclusive CPUs for dedicated pods, pools of CPUs for everything else."""

from qrm_cpu.allocator import CpuAllocator, create

__all__ = ["CpuAllocator", "create"]
