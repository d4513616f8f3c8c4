"""Tests of qrm.upkeep."""
