"""The tests in these folders run in a guest only; `test_guest.py` starts them."""

import os

collect_ignore = [] if "TOPOLET_GUEST" in os.environ else ["inside", "kubelet", "reboot", "static"]
