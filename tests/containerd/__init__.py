"""The whole of qrm in front of Debian's containerd and runc: the cgroup is the judge."""
