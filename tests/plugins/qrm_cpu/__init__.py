"""Tests of the CPU allocator."""
