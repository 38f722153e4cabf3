"""Measures the time and resources of an operator that creates many resources on an API server without nodes.

    python -m benchmarks.operator_load [POOLS LEDGERS]      default: 50 200, which issue 6 requires within 120 s

Prints one JSON line. API server, etcd and operator share the machine, so the number includes all of them.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.integration.operator.conftest import SCRIPT, with_crds
from tests.integration.operator.kube_api import KubeApi
from tests.support.operator_load import run
from tests.support.ports import free_port

TIMEOUT_S = 600.0


def main() -> None:
    """Measure and print."""
    pools, ledgers = (int(word) for word in sys.argv[1:3] or ("50", "200"))
    with tempfile.TemporaryDirectory(prefix="quire-operator-load-") as folder:
        api_folder = f"{folder}/api"
        command = [str(SCRIPT), "start", api_folder, str(free_port()), str(free_port())]
        started = subprocess.run(command, capture_output=True, text=True, check=True)
        try:
            api = with_crds(KubeApi(Path(started.stdout.strip())))
            api.create("/api/v1/namespaces", {"metadata": {"name": "load"}}).expect()
            log = Path(folder) / "operator.log"
            found = run(api, "load", log, pools=pools, ledgers=ledgers, timeout_s=TIMEOUT_S)
        finally:
            subprocess.run([str(SCRIPT), "stop", api_folder], check=False)
    print(json.dumps({"pools": pools, "ledgers": ledgers, **asdict(found)}))


if __name__ == "__main__":
    main()
