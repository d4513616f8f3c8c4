"""Tests of the building blocks: the image, kubelet's messages and cgroups, containerd, and the fake runtime."""
