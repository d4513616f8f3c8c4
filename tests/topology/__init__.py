"""Tests of `qrm.topology`."""
