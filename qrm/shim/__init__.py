"""Between kubelet and the runtime: everything passes, ten calls are looked at."""
