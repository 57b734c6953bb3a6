#!/bin/sh
# The guest's program: folders of its own where a node writes, a network that leads to the API server
# and nowhere else, then tests/cluster/inside.py.
#   guest.sh SHARE ADDRESS PYTHON LOGS PORT CARD
set -eu
share=$1 address=$2 python=$3 logs=$4 port=$5 card=/sys/bus/pci/devices/$6
here=$(cd "$(dirname "$0")" && pwd)
exec >"$share/output.txt" 2>&1
echo "guest started, $(cut -d ' ' -f 1 /proc/uptime) s after boot"

for module in virtio_net virtio_console bridge veth overlay; do
    modprobe "$module"
done
# The emulator has no card with RDMA. A PCI function gets the files that a driver with RDMA adds.
link=/run/card/infiniband/mlx5_0
mkdir -p "$link/ports/1"
for file in class vendor device numa_node local_cpulist; do
    cat "$card/$file" >"/run/card/$file"
done
echo "4: ACTIVE" >"$link/ports/1/state"
echo "5: LinkUp" >"$link/ports/1/phys_state"
echo Ethernet >"$link/ports/1/link_layer"
mount --bind /run/card "$card"

. "$here/../vm/root.sh"
for folder in var/lib/kubelet var/lib/containerd var/lib/cni var/log etc/cni etc/containerd; do
    mount -t tmpfs tmpfs "$root/$folder"
done
mkdir -p "$root/var/log/pods" "$root/var/log/containers" "$root/run/containerd" "$root/run/topolet"
# A file system of its own, so that it can be full.
mount -t tmpfs -o size=32m tmpfs "$root/run/topolet"

# Pods are on the same link as the guest, on which the emulator responds for the API server.
ip link set lo up
until ip link set eth0 up 2>/dev/null; do sleep 0.1; done
ip link add cni0 type bridge
ip link set eth0 master cni0
ip addr add "$address/8" dev cni0
ip link set cni0 up
echo "+cpuset +cpu +io +memory +hugetlb +pids" >/sys/fs/cgroup/cgroup.subtree_control
echo "ready, $(cut -d ' ' -f 1 /proc/uptime) s after boot"

# On an emulated machine, more threads in each Go program would only slow each other down.
exec chroot "$root" env PATH="$PATH" HOME=/run/tmp TMPDIR=/run/tmp GOMAXPROCS=4 \
    PYTHONDONTWRITEBYTECODE=1 "$python" "$here/inside.py" "$logs" port "$port"
