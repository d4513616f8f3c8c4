#!/bin/busybox sh
# First process of the guest, in its initramfs: builds the root file system, readies the node, and hands
# over to session.sh. An error here ends the shell, and with it the guest: the kernel panics and the
# emulator stops.
#
# From vm.py: settings sets MODULES, the folder on the host with the kernel's modules; shared lists the
# host's folders to show; etc.tar holds the host's /etc.
set -e
/bin/busybox --install -s /bin
export PATH=/bin
. /guest/settings

mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module"; done
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /host

# The root is a tmpfs with read-only binds of the host's folders, not an overlay: mounts made on an
# overlay over 9p get lost.
mount -t tmpfs -o mode=755,size=70% root /newroot
cd /newroot
mkdir -p dev lib mnt proc run sys tmp var/cache var/lib var/log var/tmp
chmod 1777 var/tmp
ln -s /run var/run
tar -xf /etc.tar
: >etc/resolv.conf
mount -t proc proc proc
mount -t sysfs sys sys
mount -t devtmpfs dev dev
mkdir dev/pts dev/shm
mount -t devpts devpts dev/pts
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=1777 shm dev/shm
mount -t tmpfs -o mode=1777 tmp tmp
mount -t tmpfs -o mode=755 run run
mv /guest run/guest

while read -r folder; do
    mkdir -p "./$folder"
    mount --bind "/host$folder" "./$folder"
done <run/guest/shared
ln -s usr/bin usr/sbin usr/lib64 .
# /lib is a folder of links, not a link, so that it can hold this kernel's modules.
(cd lib && ln -s ../usr/lib/* .)
rm -f lib/modules
mkdir -p "lib/modules/$(uname -r)"
mount --bind "/host$MODULES" "lib/modules/$(uname -r)"
umount /host

# As on a node under systemd: every controller is on below the root, and no process is in the root itself.
mount -t cgroup2 cgroup2 sys/fs/cgroup
mkdir sys/fs/cgroup/init.scope
echo $$ >sys/fs/cgroup/init.scope/cgroup.procs
for controller in $(cat sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" >sys/fs/cgroup/cgroup.subtree_control
done

hostname qrm-guest
ip link set lo up
mount --make-rshared /newroot
exec switch_root /newroot /bin/bash /run/guest/session.sh
