"""What a kubelet with the static CPU manager policy decides (peers.md §3.1-3.6)."""
