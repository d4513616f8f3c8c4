"""Tests of qrm.shim."""
