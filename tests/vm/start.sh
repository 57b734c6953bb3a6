#!/bin/sh
# The guest's program: cgroup v2 and a root whose reads are cached, then pytest in it.
#   start.sh SHARE REPOSITORY PYTHON CACHE PATHS...
# SHARE is the only folder that the guest shares with the host.
set -eu
share=$1 repository=$2 python=$3 cache=$4
shift 4
exec >"$share/output.txt" 2>&1
echo "guest started, $(cut -d ' ' -f 1 /proc/uptime) s after boot"

# Loads the drivers of the disk with virtual functions and of the network card, and unbinds the
# devices from them at once, because their interrupts would be moved whenever a CPU goes offline.
for driver in nvme e1000e; do
    modprobe "$driver" || echo "no driver $driver"
    for device in "/sys/bus/pci/drivers/$driver"/*:*; do
        [ ! -e "$device" ] || echo "${device##*/}" >"/sys/bus/pci/drivers/$driver/unbind"
    done
done

. "$(dirname "$0")/root.sh"
echo "+cpuset +cpu +io +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control

# On an emulated machine, more threads in each Go program would only slow each other down.
code=0
chroot "$root" env --chdir="$repository" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/tmp TMPDIR=/run/tmp GOMAXPROCS=4 \
    PYTHONDONTWRITEBYTECODE=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 TOPOLET_GUEST="$share" TOPOLET_CACHE="$cache" TOPOLET_TEST_DEADLINE_SECONDS=300 \
    "$python" -m pytest -v -p pytest_timeout --timeout=400 -p no:cacheprovider \
    --junit-xml="$share/junit.xml" "$@" || code=$?
echo "$code" >"$share/code.new"
mv "$share/code.new" "$share/code"
