"""The only writer: the container runtime, and the kernel's files behind it."""
