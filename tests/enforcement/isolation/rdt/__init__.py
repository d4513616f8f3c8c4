"""Tests of qrm.enforcement.isolation.rdt."""
