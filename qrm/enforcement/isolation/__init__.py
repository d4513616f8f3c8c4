"""What keeps pods out of each other's way beyond the cpuset: one dimension each for RDT, io.cost and traffic."""
