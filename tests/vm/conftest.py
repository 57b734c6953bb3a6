"""What lies in `inside` and `kubelet` runs in a guest only; `test_guest.py` starts it."""

import os

collect_ignore = [] if "TOPOLET_GUEST" in os.environ else ["inside", "kubelet"]
