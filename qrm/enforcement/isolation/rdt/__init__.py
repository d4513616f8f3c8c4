"""Cache ways and memory bandwidth by class, through the kernel's resctrl (Linux Documentation/filesystems/resctrl.rst).

What qrm decides here:

- It uses resctrl where it is mounted and never mounts it: the options cdp, cdpl2 and mba_MBps are the administrator's
  choice, and a mount that is made anew loses everybody's groups.
- A class is a group `qrm-<class>`; a class that sets nothing, and "", is the default group. Groups with other names,
  and the default group's schemata, are never written.
- A class that this node cannot give makes the whole dimension unusable, so that nobody believes in half a class: not
  enough CLOSIDs, a cache level or bandwidth that cannot be allocated, a mask that the hardware refuses. In the mode
  auto, pods then run in the default group and `qrm doctor` says why; in the mode required, qrm does not start.
- A share of a cache is rounded down to whole ways, so that shares from both ends that add up to 100 % do not overlap,
  but not below min_cbm_bits. Ways that devices use too (shareable_bits) are ways like others: leaving them out would
  make shares overlap that need not. Whoever wants to avoid them writes a mask.
- The way out where CLOSIDs are short: fewer classes, or one class in several profiles.
- containerd with an rdt_config_file of its own removes all groups that are not in that file when it starts. They come
  back within a round of repair, counted under "group"; the two should not be used together.
- The modes are the enforcer's; nothing here knows them.
"""
