"""`helm test`: checks that the operator is ready, and that etcd has a quorum and accepts our certificate.

On failure it prints the reason and exits with 1.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

PATIENCE_S = float(os.environ.get("PATIENCE_S", "60"))
PAUSE_S = 2.0


def answer(url: str, context: "ssl.SSLContext | None") -> str:
    """Return the body of a response. OSError if there is none, or an error."""
    with urllib.request.urlopen(url, timeout=10, context=context) as response:
        return str(response.read().decode())


def operator(url: str) -> None:
    """Raise OSError unless the operator is ready."""
    answer(url, None)


def etcd(url: str) -> None:
    """Raise OSError unless etcd is healthy and accepts our certificate."""
    folder = os.environ.get("ETCD_CERTIFICATES", "")
    context = None
    if folder:
        context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
        context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    found = json.loads(answer(url, context))
    if found.get("health") != "true":
        raise OSError(f"not healthy: {found}")


def main() -> int:
    """Run the checks; each is retried for a while, because pods may be starting."""
    wanted = [(name, check, os.environ.get(name, "")) for name, check in (("OPERATOR", operator), ("ETCD", etcd))]
    until_s = time.monotonic() + PATIENCE_S
    for name, check, url in wanted:
        if not url:
            continue
        while True:
            try:
                check(url)
                print(f"{name.lower()}: {url} is healthy")
                break
            except (OSError, ValueError) as error:
                if time.monotonic() >= until_s:
                    print(f"{name.lower()}: {url}: {error}", file=sys.stderr)
                    return 1
                time.sleep(PAUSE_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
