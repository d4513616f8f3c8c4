"""The CRI conformance suite and crictl, directly at a runtime and through qrm: run by hand, see README.md."""
