"""HTTP/2 of the shim."""
