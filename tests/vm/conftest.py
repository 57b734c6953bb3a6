"""What lies in `inside` runs in the guest only; `test_guest.py` starts it."""

import os

collect_ignore = [] if "TOPOLET_GUEST" in os.environ else ["inside"]
