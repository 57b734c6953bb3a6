#!/bin/sh
# The guest's program: cgroup v2 and a root whose reads are cached, then pytest in it.
#   start.sh SHARE REPOSITORY PYTHON CACHE PATHS...
# SHARE is the only folder that the guest shares with the host.
set -eu
share=$1 repository=$2 python=$3 cache=$4
shift 4
exec >"$share/output.txt" 2>&1
echo "guest started, $(cut -d ' ' -f 1 /proc/uptime) s after boot"

# Loads the driver of the disk with virtual functions, and unbinds the disk from it at once, because
# its interrupts would be moved whenever a CPU goes offline.
if modprobe nvme; then
    for disk in /sys/bus/pci/drivers/nvme/*:*; do
        [ ! -e "$disk" ] || echo "${disk##*/}" >/sys/bus/pci/drivers/nvme/unbind
    done
else
    echo "no driver for the disk with virtual functions"
fi

. "$(dirname "$0")/root.sh"
echo "+cpuset +cpu +io +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control

# On an emulated machine, more threads in each Go program would only slow each other down.
code=0
chroot "$root" env --chdir="$repository" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/tmp TMPDIR=/run/tmp GOMAXPROCS=4 \
    PYTHONDONTWRITEBYTECODE=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 TOPOLET_GUEST=1 TOPOLET_CACHE="$cache" TOPOLET_TEST_DEADLINE_SECONDS=300 \
    "$python" -m pytest -v -p pytest_timeout --timeout=400 -p no:cacheprovider \
    --junit-xml="$share/junit.xml" "$@" || code=$?
echo "$code" >"$share/code.new"
mv "$share/code.new" "$share/code"
