"""Between kubelet and the runtime: everything passes, twelve calls are looked at."""
