#!/bin/sh
# Runs in the guest of `make run-numa`: the demo on a terminal whose keys and screen are files that
# the host shares.
#   guest.sh SHARE REPOSITORY PYTHON COLUMNS LINES [ARGUMENTS]
# The host writes keys to SHARE/keys; the screen is written to SHARE/screen. COLUMNS 0: no terminal.
set -eu
share=$1 repository=$2 python=$3 columns=$4 lines=$5
shift 5
. "$repository/tests/vm/root.sh"
echo "+cpuset +cpu +io +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
set -- -m demo --dir=/run/tmp/demo --slow "$@"
if [ "$columns" = 0 ]; then
    columns=100 lines=50
else
    set -- -c 'import pty, sys; pty.spawn([sys.executable, *sys.argv[1:]])' "$@"
fi
# GOMAXPROCS: more threads make Go programs slower on an emulated machine. inotify does not report
# writes of the host.
tail ---disable-inotify -n +1 -f -s 0.2 "$share/keys" | chroot "$root" env --chdir="$repository" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/tmp TMPDIR=/run/tmp GOMAXPROCS=4 \
    TERM=xterm-256color LANG=C.UTF-8 COLUMNS="$columns" LINES="$lines" PYTHONDONTWRITEBYTECODE=1 \
    "$python" "$@" >"$share/screen" 2>&1
