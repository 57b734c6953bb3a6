# Sourced by programs of a guest: $root is its machine's root, read-only, whose reads are cached.
# The guest's own root queries the host at every step of a path; from there, Python needs
# 6 s instead of 2. $share is the one folder that both write.
root=/run/root
mkdir "$root"
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose whole "$root"
for folder in proc sys dev; do
    mount --rbind "/$folder" "$root/$folder"
done
mount -t tmpfs tmpfs "$root/run"
mkdir -p "$root/run/tmp" "$root$share"
mount --bind "$share" "$root$share"
