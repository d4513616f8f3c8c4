"""Tests of qrm.allocation."""
