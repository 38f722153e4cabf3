"""Runs `kubectl quire` against the cluster, as installed in a user's path."""

import json
import subprocess
import sys
from typing import Any

from tests.e2e.stack import Stack

TIMEOUT_S = 180


def kubectl_quire(stack: Stack, *words: str) -> str:
    """Run the plugin and return its output. AssertionError with its error if it fails."""
    place = ["--kubeconfig", str(stack.cluster.api.kubeconfig), "--namespace", stack.where]
    command = [sys.executable, "-m", "quire_operator.kubectl.main", *words, *place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, f"kubectl quire {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}"
    return done.stdout


def asked(stack: Stack, *words: str) -> Any:
    """Run the plugin and return its JSON output."""
    return json.loads(kubectl_quire(stack, *words, "-o", "json"))
