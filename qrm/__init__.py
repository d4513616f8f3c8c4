"""qrm, a node resource manager for Kubernetes that sits between kubelet and the container runtime."""

__version__ = "0.1.0"
