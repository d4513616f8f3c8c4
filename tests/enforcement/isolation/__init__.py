"""Tests of qrm.enforcement.isolation."""
