"""The web console of a standalone in a real browser: what it shows and changes, its policy, and what axe finds.

Skips where Chromium, Selenium or axe-core is missing; `scripts/console_tools.sh` installs them.
"""

import base64
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import DESKTOP, PHONE, browser, errors, missing, violations
from tests.support.polling import until
from tests.support.standalone import StandaloneProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or "all tools are here"),
    pytest.mark.timeout(600),
]
ORDERS = "persistent/public/default/orders"
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string"}],
}
ENCODED = b"\x2a\x06Ada"
"""The record {"id": 21, "who": "Ada"}."""
PAGES = ("", "tenant/public", "namespace/public/default", "topic/public/default/orders", "brokers", "bookies")


def sent(http: str, method: str, path: str, body: object = None) -> None:
    """Send a request that must succeed."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(http + path, data, {"Content-Type": "application/json"}, method=method)
    if data is None:
        request.remove_header("Content-type")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status in (200, 204)


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A standalone with a topic of one Avro message, and a subscription."""
    found = StandaloneProcess(tmp_path_factory.mktemp("console"))
    found.start()
    try:
        sent(found.http, "PUT", f"/admin/v2/{ORDERS}")
        sent(found.http, "PUT", f"/admin/v2/{ORDERS}/subscription/audit", {"ledgerId": -1, "entryId": -1})
        schema = {"type": "AVRO", "schema": json.dumps(AVRO), "properties": {}}
        sent(found.http, "POST", "/admin/v2/schemas/public/default/orders/schema", schema)
        message = {"payload": base64.b64encode(ENCODED).decode(), "key": "k", "schemaVersion": 0}
        sent(found.http, "POST", f"/admin/quire/topics/{ORDERS}/messages", message)
        yield found.http
    finally:
        found.stop()


def text_of(driver: Any) -> str:
    """Return the text of the page."""
    return str(driver.execute_script("return document.body.innerText"))


def shows(driver: Any, part: str) -> None:
    """Wait until the page shows a text."""
    until(lambda: part in text_of(driver), lambda: f"the page does not show {part!r}:\n{text_of(driver)}", timeout_s=60)


def press(driver: Any, label: str) -> None:
    """Press the shown button with this label."""
    script = """const found = [...document.querySelectorAll("button")].filter(one => one.innerText === arguments[0]
        && one.checkVisibility()).pop(); if (found) found.click(); return !!found"""
    until(lambda: driver.execute_script(script, label), f"no button {label!r}", timeout_s=60)


@pytest.mark.parametrize(("size", "dark"), [(DESKTOP, False), (PHONE, True)], ids=["light", "dark-phone"])
def test_no_page_has_serious_faults_or_breaks_the_policy(http: str, tmp_path: Path, size: Any, dark: bool) -> None:
    with browser(tmp_path / "profile", size, dark=dark) as driver:
        driver.get(f"{http}/console/")
        for page in PAGES:
            driver.execute_script("location.hash = arguments[0]", f"#/{page}")
            until(lambda: "Loading" not in text_of(driver), "the page still loads", timeout_s=60)
            assert violations(driver) == [], page
            width = driver.execute_script("return document.documentElement.scrollWidth")
            assert width <= size[0], f"{page} is wider than the screen"
        # Topics without traffic have no history, which is a 404 that the console expects.
        assert [text for text in errors(driver) if "/admin/quire/rates/" not in text] == []


def test_a_message_is_shown_by_its_schema_and_a_new_one_is_published(http: str, tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as driver:
        driver.get(f"{http}/console/#/topic/public/default/orders")
        press(driver, "Read")
        shows(driver, '"who": "Ada"')
        shows(driver, "AVRO, version 0")
        driver.find_element("css selector", "details > summary").click()
        driver.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
        driver.find_element("css selector", "textarea").send_keys("a test message")
        press(driver, "Publish")
        shows(driver, "Stored as")
        press(driver, "Read")
        shows(driver, "a test message")


def test_a_subscription_is_deleted_only_after_its_name(http: str, tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as driver:
        driver.get(f"{http}/console/#/topic/public/default/orders")
        press(driver, "Delete audit")
        submit = driver.find_element("css selector", "dialog[open] button[type=submit]")
        typed = driver.find_element("css selector", "dialog[open] input")
        typed.send_keys("audi")
        assert not submit.is_enabled()
        typed.send_keys("t")
        until(submit.is_enabled, "the right name does not enable the button")
        submit.click()
        shows(driver, "No subscriptions")


def test_a_policy_is_changed_and_then_inherited_again(http: str, tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as driver:
        driver.get(f"{http}/console/#/topic/public/default/orders")
        shows(driver, "Also show those")
        driver.find_element("css selector", "input[type=checkbox]").click()
        press(driver, "Change maxProducers")
        value = driver.find_element("css selector", "dialog[open] textarea")
        value.clear()
        value.send_keys("many")
        driver.find_element("css selector", "dialog[open] button[type=submit]").click()
        shows(driver, "JSON")
        value.clear()
        value.send_keys("7")
        driver.find_element("css selector", "dialog[open] button[type=submit]").click()
        press(driver, "Inherit maxProducers")
        driver.find_element("css selector", "dialog[open] button[type=submit]").click()
        until(lambda: "Inherit maxProducers" not in text_of(driver), "the policy is still the topic's", timeout_s=60)
