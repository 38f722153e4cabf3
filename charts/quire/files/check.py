"""`helm test`: the operator is ready; etcd has a quorum and takes our certificate. Exit code 1 says what is wrong."""

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
    """The body; OSError when it does not come or is an error."""
    with urllib.request.urlopen(url, timeout=10, context=context) as response:
        return str(response.read().decode())


def operator(url: str) -> None:
    """OSError: it is not ready."""
    answer(url, None)


def etcd(url: str) -> None:
    """OSError: it is not healthy, or does not take us."""
    folder = os.environ.get("ETCD_CERTIFICATES", "")
    context = None
    if folder:
        context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
        context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    said = json.loads(answer(url, context))
    if said.get("health") != "true":
        raise OSError(f"it says {said}")


def main() -> int:
    """Each check is repeated for a while: pods may just be starting."""
    wanted = [(name, check, os.environ.get(name, "")) for name, check in (("OPERATOR", operator), ("ETCD", etcd))]
    until_s = time.monotonic() + PATIENCE_S
    for name, check, url in wanted:
        if not url:
            continue
        while True:
            try:
                check(url)
                print(f"{name.lower()}: {url} is well")
                break
            except (OSError, ValueError) as error:
                if time.monotonic() >= until_s:
                    print(f"{name.lower()}: {url}: {error}", file=sys.stderr)
                    return 1
                time.sleep(PAUSE_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
