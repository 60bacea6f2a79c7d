"""Actions in Chromium that tests/web/test_browser.py does not take, one by the keyboard alone."""

from __future__ import annotations

import psycopg
import pytest
from playwright.sync_api import Browser, Page

from tests.calls import call, enqueue_many, reserve, value
from tests.facts import wait_until
from tests.web.browser import browser, in_browser, listen, page, said
from tests.web.conftest import Serve

__all__ = ["browser", "page", "said"]

pytestmark = in_browser


def state_of(conn: psycopg.Connection, job: int) -> str:
    found: str = value(conn, "select state::text from pgqueue.all_jobs where id = %s", job)
    return found


def test_a_job_is_run_now_cancelled_and_sent_to_the_dead(filled: psycopg.Connection, page: Page) -> None:
    late = value(filled, "select max(id) from pgqueue.jobs where queue = 'reports' and key is null")
    assert value(filled, "select run_at > now() from pgqueue.jobs where id = %s", late)
    page.goto(f"/jobs/{late}")
    page.get_by_role("button", name="Run now", exact=True).click()
    page.get_by_text("1 job due now").wait_for()
    assert value(filled, "select run_at <= pgqueue._clock() from pgqueue.jobs where id = %s", late)
    other = value(filled, "select min(id) from pgqueue.jobs where queue = 'mail' and state = 'waiting'")
    page.goto(f"/jobs/{other}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_text("1 job cancelled or asked to stop").wait_for()
    assert state_of(filled, other) == "cancelled"
    page.goto(f"/jobs/{late}")
    page.get_by_role("button", name="Send to the dead…").click()
    page.get_by_role("heading", name="Send to the dead: 1 job?").wait_for()
    assert state_of(filled, late) == "waiting"
    page.get_by_role("button", name="Send to the dead", exact=True).click()
    page.get_by_text("1 job dead").wait_for()
    assert state_of(filled, late) == "dead"
    assert value(filled, "select actor || ' ' || via from pgqueue.audit order by n desc limit 1") == "alice web"


def test_a_group_is_cancelled_and_its_members_retried(filled: psycopg.Connection, page: Page) -> None:
    group = call(filled, "open_group", "export")
    members = enqueue_many(filled, 3, "load", queue="exports", group_id=group)
    call(filled, "close_group", group)
    [row] = reserve(filled, 1, "w1", queues=["exports"])
    call(filled, "fail", row.id, row.reservation, retry=False)
    page.goto(f"/group?id={group}")
    page.get_by_role("button", name="Cancel the group…").click()
    page.wait_for_url("**/group")
    assert sorted(state_of(filled, each) for each in members) == ["dead", "waiting", "waiting"]
    page.locator("main form button").click()
    page.wait_for_url("**/group?id=*said=*")
    wait_until(lambda: sorted(state_of(filled, each) for each in members) == ["cancelled", "cancelled", "dead"])
    for which, jobs in [("dead", "1 job"), ("cancelled", "2 jobs")]:
        page.goto(f"/group?id={group}")
        page.get_by_role("button", name=f"Retry its {which} members…").click()
        page.get_by_role("heading", name=f"Retry: {jobs}?").wait_for()
        page.get_by_role("button", name="Retry", exact=True).click()
        page.get_by_text(f"{jobs} retried").wait_for()
    assert [state_of(filled, each) for each in members] == ["waiting"] * 3


def test_a_schedule_goes_on_and_is_removed(filled: psycopg.Connection, page: Page) -> None:
    call(filled, "pause_schedule", "nightly")
    for label, shown, left in [("Resume", "the schedule continues", 1), ("Remove", "the schedule is removed", 0)]:
        page.goto("/schedule?name=nightly")
        page.get_by_role("button", name=f"{label}: nightly").click()
        page.get_by_role("heading", name=f"{label}: schedule nightly?").wait_for()
        page.get_by_role("button", name=label, exact=True).click()
        page.get_by_text(f"nightly: {shown}").wait_for()
        assert value(filled, "select count(*) from pgqueue.schedules where paused_at is null") == left


def test_a_limit_is_set_and_dropped_on_the_page_of_a_queue(filled: psycopg.Connection, page: Page) -> None:
    limit = "select max_executing, rate, per::text from pgqueue.limits where (kind, target) = ('queue', 'reports')"
    page.goto("/queue?name=reports")
    page.get_by_label("At most executing").fill("7")
    page.get_by_label("Starts").fill("30")
    page.get_by_label("per", exact=True).fill("1 min")
    page.get_by_role("button", name="Apply the limit").click()
    page.get_by_text("the limit applies from now on").wait_for()
    assert filled.execute(limit.encode()).fetchall() == [(7, 30, "00:01:00")]
    page.goto("/queue?name=reports")
    page.get_by_role("button", name="Drop the limit…").click()
    page.get_by_role("button", name="Drop", exact=True).click()
    page.get_by_text("the limit is removed").wait_for()
    assert filled.execute(limit.encode()).fetchall() == []


def go_to(page: Page, text: str) -> None:
    """Press Tab until the focus is on the link or button of that text."""
    for _ in range(150):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == text:
            return
    raise AssertionError(f"{text} cannot be reached with Tab")


def test_a_job_is_deleted_by_the_keyboard_alone(filled: psycopg.Connection, page: Page) -> None:
    job = value(filled, "select max(id) from pgqueue.history where state = 'dead'")
    page.goto("/")
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url("**/jobs")
    page.keyboard.press("/")
    page.keyboard.type(f"id:{job}")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs?q=id*")
    go_to(page, str(job))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{job}")
    go_to(page, "Delete…")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Delete: 1 job?").wait_for()
    go_to(page, "Leave them")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.textContent") == "Delete"
    page.keyboard.press("Enter")
    page.get_by_text("1 job deleted").wait_for()
    assert value(filled, "select count(*) from pgqueue.all_jobs where id = %s", job) == 0


@pytest.mark.parametrize("wrong", ["console", "policy", "script"])
def test_what_goes_wrong_in_a_page_is_heard(browser: Browser, serve: Serve, wrong: str) -> None:
    heard: list[str] = []
    context = browser.new_context(base_url=serve())
    listen(context, heard)
    tried = context.new_page()
    tried.goto("/queues")
    assert heard == []
    tried.evaluate(
        {
            "console": "console.error('oh')",
            "policy": "document.head.append(Object.assign(document.createElement('style'), {textContent: 'p {}'}))",
            "script": "setTimeout(() => { throw new Error('oh') })",
        }[wrong]
    )
    for _ in range(300):
        if heard:
            break
        tried.wait_for_timeout(200)
    context.close()
    assert len(heard) == 1, heard
