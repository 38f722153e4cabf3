"""Write the list of the keys that bookies and brokers know: `.venv/bin/python scripts/k8s/known_settings.py`.

The operator imports neither of them, so it has the keys as a list; a unit test says when this must be run again.
"""

from pathlib import Path

from quire_bookie.config import BookieConfig
from quire_bookie.config.sources import ProcessConfig
from quire_broker.config.broker import BrokerConfig

FILE = Path(__file__).resolve().parents[2] / "operator" / "src" / "quire_operator" / "plan" / "known_settings.py"
WIDTH = 118
HEAD = '"""Keys that the processes know. Written by scripts/k8s/known_settings.py from their own models."""\n'


def rows(model: type[ProcessConfig]) -> str:
    """The keys, as many in a line as fit."""
    lines: list[list[str]] = [[]]
    for key in sorted(model.key_of(name) for name in model.model_fields):
        if lines[-1] and len(line_of([*lines[-1], key])) > WIDTH:
            lines.append([])
        lines[-1].append(key)
    return "\n".join(map(line_of, lines))


def line_of(keys: list[str]) -> str:
    """One line of the tuple."""
    comma = "," if len(keys) == 1 else ""
    return "        *(" + ", ".join(f'"{key}"' for key in keys) + f"{comma}),"


def text() -> str:
    """The whole file."""
    parts = [
        f"{name} = frozenset(\n    (\n{rows(model)}\n    )\n)\n"
        for name, model in (("BOOKIE_KEYS", BookieConfig), ("BROKER_KEYS", BrokerConfig))
    ]
    return HEAD + "\n" + "\n".join(parts)


if __name__ == "__main__":
    FILE.write_text(text())
