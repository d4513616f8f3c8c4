"""Tests of qrm.allocation.remote."""
