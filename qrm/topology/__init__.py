"""What the node is made of, read from sysfs."""
