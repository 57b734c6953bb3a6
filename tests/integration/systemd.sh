#!/bin/sh
# The first process of a PID namespace in a world of tests/cluster: a systemd that can change nothing of
# the machine. systemd-tmpfiles, systemd-sysctl and others of a distribution's units change files, devices
# and settings outside of the world: the root is read-only, /dev, /tmp and the units are its own, and the
# units are those that are named here.
#   systemd.sh TUNABLES [FOLDER]...
# The folders, those of the programs, stay where they are, read-only, also below /tmp, /var/tmp and /opt.
set -eu
tunables=$1
shift
units=/usr/lib/systemd/system

# Settings that a kubelet changes are copies; no other can be changed.
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
for file in "$tunables"/*; do
    mount --bind "$file" "/proc/sys/$(basename "$file" | tr . /)"
done
mount -o remount,bind,ro /sys

mkdir -p /run/units/sockets.target.wants /run/dev/pts /run/dev/shm /run/dev/mqueue
for name in sysinit basic sockets timers paths slices local-fs local-fs-pre shutdown umount final multi-user; do
    cp "$units/$name.target" /run/units/
done
mknod /run/dev/kmsg c 1 11
for node in null zero full random urandom tty; do
    cp -a "/dev/$node" /run/dev/
done
ln -s /proc/self/fd /run/dev/fd
ln -s pts/ptmx /run/dev/ptmx
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts /run/dev/pts
mount -t tmpfs tmpfs /run/dev/shm
mount --rbind /run/dev /dev
mount --bind /run/units "$units"
mkdir /run/kept
count=$#
while [ "$count" -gt 0 ]; do
    count=$((count - 1))
    folder=$1
    shift
    case $folder in
    /tmp/?* | /var/tmp/?* | /opt/?*)
        mkdir -p "/run/kept$folder"
        mount --bind "$folder" "/run/kept$folder"
        mount -o remount,bind,ro "/run/kept$folder"
        set -- "$@" "$folder"
        ;;
    esac
done
for folder in /tmp /var/tmp /opt; do
    mount -t tmpfs tmpfs "$folder"
done
for folder in "$@"; do
    mkdir -p "$folder"
    mount --bind "/run/kept$folder" "$folder"
done
mount -o remount,bind,ro /

# Whoever changes this file: no line of it may make the machine's files writable.
for folder in / /usr /root /home /var /var/cache /sys /proc/sys/kernel "$@"; do
    if touch "$folder/topolet-test" 2>/dev/null; then
        echo "$folder of the machine is writable" >&2
        exit 1
    fi
done
for folder in /tmp /var/tmp /opt /dev/shm; do
    [ -z "$(find "$folder" -xdev ! -type d -print -quit)" ] || { echo "$folder is the machine's" >&2; exit 1; }
done
[ "$(ls "$units" | wc -l)" -lt 20 ] || { echo "$units is the machine's" >&2; exit 1; }
exec env -i container=topolet PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --unit=node.target --show-status=0
