"""A headless Chromium for tests of the web console, driven over the WebDriver protocol by Selenium."""

import importlib
import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

AXE = Path(__file__).resolve().parents[2] / "console" / "node_modules" / "axe-core" / "axe.min.js"
DESKTOP, PHONE = (1280, 900), (390, 844)


def missing() -> str:
    """Return what a browser test lacks here; empty if nothing."""
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        return "no Chromium: run scripts/console_tools.sh"
    if importlib.util.find_spec("selenium") is None:
        return "no Selenium: run scripts/console_tools.sh"
    if not AXE.is_file():
        return "no axe-core: run scripts/console_tools.sh"
    return ""


@contextmanager
def browser(folder: Path, size: tuple[int, int] = DESKTOP, *, dark: bool = False) -> Iterator[Any]:
    """Run a browser with its profile in the folder."""
    selenium: Any = importlib.import_module("selenium.webdriver")
    options = selenium.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.add_argument(f"--user-data-dir={folder}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(shutil.which("chromedriver")))
    try:
        driver.set_script_timeout(120)
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        yield driver
    finally:
        driver.quit()


def violations(driver: Any) -> list[str]:
    """Return what axe finds serious or critical on the page, each with the elements."""
    driver.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE.read_text()})
    found: list[Any] = driver.execute_async_script(
        "const done = arguments[arguments.length - 1]; axe.run().then(found => done(found.violations))"
    )
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    return [f"{one['id']}: {[node['html'] for node in one['nodes']]}" for one in serious]


def errors(driver: Any) -> list[str]:
    """Return the errors of the console's log: among them what the policy of the page refused."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
