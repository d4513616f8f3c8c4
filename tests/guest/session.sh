# First process of the guest once init.sh is done: runs the script, reports its exit code, powers off.
#
# settings, written by vm.py, sets CHECKOUT, where the script starts; PYTHON_BIN, the first folder of its
# PATH; and MARKER, the word before the exit code.
. /run/guest/settings
export PATH="$PYTHON_BIN:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
export HOME=/root LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1

cd "$CHECKOUT" || exit
/run/guest/script </dev/null
status=$?

echo 1 >/proc/sys/kernel/printk # the kernel must not write into the marker's line
printf '\n%s %d\n' "$MARKER" "$status"
stty -echo </dev/console # waits until the console has written everything
busybox poweroff -f
