"""The configuration of a running kubelet: GET /configz on its own port."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from typing import Final

from agent.kubelet import configuration
from agent.kubelet.configuration import ConfigurationError, KubeletConfiguration

TIMEOUT_SECONDS: Final = 5.0
MOST_BYTES: Final = 4 << 20


def read(url: str, token_file: str, ca_file: str) -> KubeletConfiguration | None:
    """`url`: `https://NODE:10250/configz`, or a `file:` with such an answer. Kubelets mostly sign
    their own certificate, so it is verified only with a `ca_file`. None when nothing listens: the
    kubelet does not run. Raises ConfigurationError."""
    try:
        request = urllib.request.Request(url)
        if token_file:
            with open(token_file, encoding="utf-8") as file:
                request.add_header("Authorization", f"Bearer {file.read().strip()}")
        context = ssl.create_default_context(cafile=ca_file or None)
        if not ca_file:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=context) as answer:
            raw = _body(answer)
        content = json.loads(raw)
    except (urllib.error.HTTPError, HTTPException, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{url}: {error}") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionRefusedError):
            return None
        raise ConfigurationError(f"{url}: {error.reason}") from error
    except OSError as error:
        raise ConfigurationError(f"{url}: {error}") from error
    return configuration.of_object(content, url)


def _body(answer: HTTPResponse) -> bytes:
    """Raises TimeoutError after TIMEOUT_SECONDS, even if each single read was in time."""
    end = time.monotonic() + TIMEOUT_SECONDS
    raw = b""
    while len(raw) < MOST_BYTES and (more := answer.read1(MOST_BYTES - len(raw))):
        raw += more
        if time.monotonic() > end:
            raise TimeoutError(f"the answer takes longer than {TIMEOUT_SECONDS} s")
    return raw
