"""The cost model of block devices (blk-iocost), which is what gives io.weight its effect. cgroup v2 only."""
