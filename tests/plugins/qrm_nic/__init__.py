"""Tests of the NIC allocator."""
