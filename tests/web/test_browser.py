"""The pages in Chromium: every page and action, by keyboard, without JavaScript, narrow, and no word on the console.

Skipped where there is no Chromium. axe-core, which looks for what a screen reader cannot read, comes from npm; without
npm, or a registry, its test is skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile

import psycopg
import pytest
from playwright.sync_api import Browser, Page

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, maintain, value
from tests.facts import wait_until
from tests.web.browser import browser, in_browser, listen, page, said
from tests.web.conftest import Serve

__all__ = ["browser", "page", "said"]

pytestmark = in_browser

PAGES = ["/", "/queues", "/queue?name=mail", "/jobs", "/dead", "/tasks", "/task?name=send_email", "/workers"]
PAGES += [
    "/groups",
    "/worker?name=w1",
    "/schedules",
    "/schedule?name=nightly",
    "/limits",
    "/tenants",
    "/events",
    "/audit",
]
PAGES += ["/health"]

AXE = "axe-core@4.14.1"


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    if shutil.which("npm") is None:
        pytest.skip("no npm, and so no axe-core")
    directory = tmp_path_factory.mktemp("axe")
    done = subprocess.run(["npm", "pack", "--silent", AXE], cwd=directory, capture_output=True, text=True, check=False)
    archives = list(directory.glob("*.tgz"))
    if done.returncode or not archives:
        pytest.skip(f"axe-core cannot be fetched: {done.stderr[-200:]}")
    with tarfile.open(archives[0]) as archive:
        file = archive.extractfile("package/axe.min.js")
        assert file is not None
        return file.read().decode()


def job_of(conn: psycopg.Connection, state: str) -> int:
    found: int = value(conn, "select max(id) from pgqueue.all_jobs where state::text = %s", state)
    return found


def pages_of(conn: psycopg.Connection) -> list[str]:
    """Every page, also those of one job in each state and of a group."""
    group = value(conn, "select id from pgqueue.groups()")
    jobs = [job_of(conn, state) for state in ("dead", "executing", "blocked", "waiting", "succeeded")]
    return [*PAGES, f"/group?id={group}", f"/jobs/{group}", *(f"/jobs/{job}" for job in jobs)]


def test_every_page_loads_without_a_word_on_the_console(filled: psycopg.Connection, page: Page) -> None:
    for path in pages_of(filled):
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 200, path
        assert page.locator("h1").count() == 1
        page.wait_for_timeout(100)


@pytest.mark.long
def test_plots_are_drawn(filled: psycopg.Connection, page: Page) -> None:
    page.goto("/")
    page.locator(".plot canvas").first.wait_for()
    page.get_by_label("1 h", exact=True).check()
    wait_until(lambda: page.locator(".plot canvas").count() == 2)


@pytest.mark.long
def test_the_page_follows_what_happens(filled: psycopg.Connection, page: Page) -> None:
    page.goto("/queues")
    page.locator("#interval").select_option("1")
    call(filled, "pause_queue", "reports")
    page.get_by_role("button", name="Resume queue reports").wait_for()
    assert page.locator("#interval").input_value() == "1"
    # The navigation, too.
    before = page.locator("#badge").inner_text()
    call(filled, "beat", "w1")
    filled.execute(
        "update pgqueue.samples set dead = dead + 2000, at = at + (select now() - max(x.at) from pgqueue.samples x)"
    )
    wait_until(lambda: page.locator("#badge").inner_text() not in (before, ""))


PLACES = """() => [...document.querySelectorAll('.queues .row > *, .vitals > div, .panel, .plot')].map((each) => {
  const box = each.getBoundingClientRect();
  return [Math.round(box.left), Math.round(box.top), Math.round(box.width), Math.round(box.height)].join();
})"""


def test_nothing_moves_at_a_refresh_and_what_was_opened_stays_open(filled: psycopg.Connection, page: Page) -> None:
    for number in range(9):
        enqueue_many(filled, 1, queue=f"quiet-{number}")
    maintain(filled)
    page.goto("/")
    page.locator(".plot canvas").first.wait_for()
    page.locator("#quiet summary").click()
    page.get_by_label("1 h", exact=True).check()
    before, due = page.evaluate(PLACES), page.locator(".vitals dd").nth(2).inner_text()
    # The pages read samples of a worker that lives, and count by themselves where the last is old.
    call(filled, "beat", "w1")
    filled.execute(
        "update pgqueue.samples set due = 12345, dead = 6789, executing = 123,"
        " at = at + (select now() - max(x.at) from pgqueue.samples x)"
    )
    page.locator("#interval").select_option("1")
    wait_until(lambda: page.locator(".vitals dd").nth(2).inner_text() != due)
    assert page.evaluate(PLACES) == before
    assert page.locator("#quiet").get_attribute("open") is not None
    assert page.get_by_label("1 h", exact=True).is_checked()
    assert page.locator(".plot canvas").count() == 2


COLUMNS = """() => [...document.querySelectorAll('table.steady thead th')].map((each) => {
  const box = each.getBoundingClientRect();
  return [Math.round(box.left), Math.round(box.width)].join();
})"""


@pytest.mark.parametrize("path", ["/queues", "/limits"])
def test_no_column_moves_where_a_number_grows(filled: psycopg.Connection, page: Page, path: str) -> None:
    call(filled, "set_limit", "queue", "reports", max_executing=4)
    enqueue_many(filled, 1, queue="x")
    call(filled, "beat", "w1")
    maintain(filled)
    page.goto(path)
    before, shown = page.evaluate(COLUMNS), page.locator("table.steady").first.inner_text()
    assert before
    enqueue_many(filled, 1, queue="a-queue-with-a-name-that-is-long")
    call(filled, "set_limit", "queue", "a-queue-with-a-name-that-is-long", max_executing=123456)
    call(filled, "beat", "w1")
    maintain(filled)
    filled.execute("update pgqueue.samples set due = 12345, scheduled = 98765, failed = 54321, dead = 67890")
    page.locator("#interval").select_option("1")
    wait_until(lambda: page.locator("table.steady").first.inner_text() != shown)
    page.get_by_text("a-queue-with-a-name").first.wait_for()
    assert page.evaluate(COLUMNS) == before


@pytest.mark.long
def test_the_page_stands_still_while_rows_are_selected(filled: psycopg.Connection, page: Page) -> None:
    page.goto("/jobs?q=queue:mail")
    page.locator("#interval").select_option("1")
    page.locator("input[name=id]").first.check()
    enqueue_many(filled, 5, "new_one", queue="mail")
    page.wait_for_timeout(2500)
    assert page.get_by_text("new_one").count() == 0
    assert page.locator("input[name=id]").first.is_checked()
    page.locator("input[name=id]").first.uncheck()
    page.get_by_text("new_one").first.wait_for()


def test_rows_are_selected_and_retried(filled: psycopg.Connection, page: Page) -> None:
    page.goto("/jobs?q=state:dead")
    page.locator("#all").check()
    assert page.locator("[data-selected]").inner_text() == "9 selected"
    page.get_by_role("button", name="Retry…").click()
    page.get_by_role("heading", name="Retry: 9 jobs?").wait_for()
    page.get_by_role("button", name="Retry", exact=True).click()
    page.get_by_text("9 jobs retried").wait_for()
    assert value(filled, "select count(*) from pgqueue.history where state = 'dead'") == 0


@pytest.mark.long
def test_a_plot_says_where_the_recorded_history_begins(conn: psycopg.Connection, page: Page, clock: Clock) -> None:
    page.goto("/")
    page.locator('.plot[aria-label="In and out per second, nothing is recorded yet"]').wait_for()
    call(conn, "hello", "w")
    clock.advance("-5 min")
    maintain(conn)
    clock.back_to_real()
    maintain(conn)
    page.get_by_label("1 h", exact=True).check()
    page.locator('.plot[aria-label*="In and out per second, recorded since "]').wait_for()


@pytest.mark.long
def test_the_number_of_a_plot_is_marked_where_it_was_counted_before(conn: psycopg.Connection, page: Page) -> None:
    call(conn, "hello", "w")
    enqueue_many(conn, 7, queue="mail")
    maintain(conn)
    conn.execute("update pgqueue.samples set due = 12000, is_large = true, is_ready_kept = true")
    conn.execute("update pgqueue.samples set counted_at = at - interval '3 min'")
    page.goto("/queue?name=mail")
    page.locator(".legend b").get_by_text("~12,000").wait_for()


@pytest.mark.long
def test_all_like_this_are_retried_from_the_page_of_the_dead(filled: psycopg.Connection, page: Page) -> None:
    page.goto("/dead")
    page.get_by_role("button", name="Retry all… like").click()
    page.get_by_role("button", name="Retry", exact=True).click()
    page.get_by_text("9 jobs retried").wait_for()


@pytest.mark.long
def test_thousands_that_match_want_their_number_typed_and_go_on_by_themselves(
    conn: psycopg.Connection, page: Page
) -> None:
    enqueue_many(conn, 1600, queue="mail")
    page.goto("/jobs?q=queue:mail")
    page.get_by_label("all that match").check()
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_label("to continue").fill("1600")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_text("1600 jobs cancelled").wait_for()
    assert value(conn, "select count(*) from pgqueue.jobs") == 0


@pytest.mark.long
def test_a_job_is_deleted_after_a_question(filled: psycopg.Connection, page: Page) -> None:
    job = job_of(filled, "dead")
    page.goto(f"/jobs/{job}")
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("heading", name="Delete: 1 job?").wait_for()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_text("1 job deleted").wait_for()
    assert value(filled, "select count(*) from pgqueue.history where id = %s", job) == 0


@pytest.mark.long
def test_a_queue_is_paused_configured_and_purged(filled: psycopg.Connection, page: Page) -> None:
    page.goto("/queue?name=mail")
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("button", name="Resume").wait_for()
    page.get_by_label("Weight").fill("7")
    page.get_by_role("button", name="Set").click()
    wait_until(lambda: value(filled, "select weight from pgqueue.queues where name = 'mail'") == 7)
    page.get_by_role("button", name="Purge…").click()
    page.get_by_label("Type the name").fill("mail")
    page.get_by_role("button", name="Purge", exact=True).click()
    page.get_by_text("jobs deleted").wait_for()


@pytest.mark.long
def test_limits_schedules_and_tasks(filled: psycopg.Connection, page: Page) -> None:
    page.goto("/limits")
    limit = page.locator("form").filter(has=page.get_by_role("button", name="Set", exact=True))
    limit.get_by_label("Kind").select_option("task")
    limit.get_by_label("Of", exact=True).fill("report")
    limit.get_by_label("At most executing").fill("2")
    limit.get_by_role("button", name="Set", exact=True).click()
    page.get_by_role("button", name="Drop the limit of report").click()
    page.get_by_role("button", name="Drop", exact=True).click()
    wait_until(lambda: value(filled, "select count(*) from pgqueue.limits where target = 'report'") == 0)
    page.goto("/schedules")
    page.get_by_role("button", name="Run now: nightly").click()
    page.get_by_role("button", name="Run now", exact=True).click()
    page.get_by_text("was enqueued").wait_for()
    page.get_by_role("button", name="Pause: nightly").click()
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("button", name="Resume: nightly").wait_for()
    page.get_by_role("link", name="nightly", exact=True).click()
    page.get_by_label("Expression").fill("15 6 * * *")
    page.get_by_role("button", name="Set…").click()
    page.get_by_text("at 06:15").wait_for()
    page.get_by_role("button", name="Set", exact=True).click()
    page.get_by_text("it is set from now on").wait_for()
    call(filled, "configure_task", "report", max_attempts=3)
    page.goto("/task?name=report")
    page.get_by_role("button", name="Reset max_attempts").click()
    wait_until(lambda: value(filled, "select max_attempts from pgqueue.tasks where name = 'report'") is None)


@pytest.mark.long
def test_a_worker_is_made_quiet_resumed_and_stopped(filled: psycopg.Connection, page: Page) -> None:
    page.goto("/workers")
    for button in ("Make quiet", "Resume", "Stop"):
        page.get_by_role("button", name=f"{button}: w1").click()
        page.get_by_role("heading", name=f"{button}: worker w1?").wait_for()
        page.get_by_role("button", name=button, exact=True).click()
        page.get_by_role("heading", name="Workers").wait_for()
    page.get_by_text("asked to stop", exact=True).wait_for()
    assert value(filled, "select command from pgqueue.workers") == "stop"


@pytest.mark.long
def test_the_keyboard_alone_is_enough(filled: psycopg.Connection, page: Page) -> None:
    page.goto("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Escape")
    page.locator("body").press("g")
    page.locator("body").press("j")
    page.wait_for_url("**/jobs")
    page.locator("body").press("/")
    page.keyboard.type("state:dead")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs?q=state*")
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "id":
            break
    page.keyboard.press("Space")
    assert page.locator("input[name=id]:checked").count() == 1


def test_the_pages_work_without_javascript(
    filled: psycopg.Connection, browser: Browser, serve: Serve, said: list[str]
) -> None:
    context = browser.new_context(base_url=serve(), java_script_enabled=False)
    listen(context, said)
    page = context.new_page()
    page.goto("/jobs")
    page.get_by_label("Filter", exact=True).fill("state:dead")
    page.get_by_role("button", name="Filter").click()
    page.locator("input[name=id]").first.check()
    page.get_by_role("button", name="Retry…").click()
    page.get_by_text("1 job retried").wait_for()
    page.goto("/queue?name=mail")
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("button", name="Resume").wait_for()
    context.close()


@pytest.mark.long
@pytest.mark.parametrize("width", [390, 768])
def test_no_page_is_wider_than_a_narrow_screen(filled: psycopg.Connection, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    for path in pages_of(filled):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_stands_in_the_way_of_a_screen_reader(
    filled: psycopg.Connection, page: Page, axe: str, scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    for path in [*pages_of(filled), "/jobs?q=state:dead"]:
        page.goto(path)
        found = page.evaluate(f"(async () => {{ {axe}; return (await axe.run()).violations; }})()")
        serious = [
            (each["id"], [node["html"][:200] for node in each["nodes"]][:3])
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == [], path


def test_names_of_producers_run_nothing(conn: psycopg.Connection, page: Page) -> None:
    enqueue_many(conn, 2, "<img src=x onerror=alert(1)>", queue="<script>alert(1)</script>")
    maintain(conn)
    for path in ["/", "/queues", "/jobs"]:
        page.goto(path)
        page.wait_for_timeout(100)


def test_on_a_telephone_the_numbers_of_a_thing_stand_four_in_a_line(
    filled: psycopg.Connection, browser: Browser, serve: Serve, said: list[str]
) -> None:
    context = browser.new_context(base_url=serve(), viewport={"width": 390, "height": 844})
    listen(context, said)
    page = context.new_page()
    for path in ("/queues", "/tasks"):
        page.goto(path)
        cells = page.locator("table.figures tbody tr").first.locator("td")
        boxes = [box for each in cells.all()[:4] if (box := each.bounding_box())]
        assert len({box["y"] for box in boxes}) == 1, path
        assert len({box["x"] for box in boxes}) == 4, path
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    context.close()


def test_on_a_telephone_the_graph_of_a_group_scrolls_in_its_own_box_and_no_name_is_cut(
    conn: psycopg.Connection, browser: Browser, serve: Serve, said: list[str]
) -> None:
    group = call(conn, "open_group", "import")
    above = enqueue_many(conn, 20, "recalculate_balances", group_id=group)
    below = [enqueue(conn, "a_long_name_of_24_letters", group_id=group, depends_on=above)]
    enqueue(conn, "send_email", group_id=group, depends_on=below)
    context = browser.new_context(base_url=serve(), viewport={"width": 390, "height": 844}, has_touch=True)
    listen(context, said)
    page = context.new_page()
    page.goto(f"/group?id={group}")
    box, nodes = page.locator(".drawn"), page.locator("svg.graph a")
    assert nodes.count() == 22
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert box.evaluate("each => each.scrollWidth > each.clientWidth && each.clientHeight < innerHeight")
    # Each text within its rectangle, and each rectangle large enough to touch, within what can be scrolled to.
    assert nodes.evaluate_all(
        "all => all.every((each) => {"
        " const [box, ...texts] = [...each.querySelectorAll('rect, text')].map((x) => x.getBBox());"
        " return texts.every((x) => x.x + x.width <= box.x + box.width) && box.height >= 36; })"
    )
    nodes.last.scroll_into_view_if_needed()
    assert nodes.last.evaluate("each => each.getBoundingClientRect().right <= innerWidth")
    context.close()


def test_on_a_telephone_the_name_of_a_queue_has_the_whole_line(
    conn: psycopg.Connection, browser: Browser, serve: Serve, said: list[str]
) -> None:
    enqueue_many(conn, 2, queue="payments of all customers")
    maintain(conn)
    context = browser.new_context(base_url=serve(), viewport={"width": 390, "height": 844})
    listen(context, said)
    page = context.new_page()
    page.goto("/queues")
    name, row = page.locator("table.figures tbody th").first, page.locator("table.figures tbody tr").first
    assert name.evaluate("each => each.offsetWidth") > 0.8 * row.evaluate("each => each.offsetWidth")
    context.close()


def test_on_a_telephone_the_boxes_of_a_form_stand_below_each_other(
    filled: psycopg.Connection, browser: Browser, serve: Serve, said: list[str]
) -> None:
    context = browser.new_context(base_url=serve(), viewport={"width": 390, "height": 844})
    listen(context, said)
    page = context.new_page()
    page.goto("/limits")
    form = page.locator("form.bar").filter(has=page.get_by_label("At most executing"))
    boxes = [box for each in form.locator("input:not([type=hidden]), select").all() if (box := each.bounding_box())]
    assert len(boxes) == 7
    assert len({round(box["x"]) for box in boxes}) == 1
    assert len({round(box["y"]) for box in boxes}) == 7
    context.close()


def test_a_mark_of_how_bad_it_is_is_filled_wherever_it_stands(filled: psycopg.Connection, page: Page) -> None:
    call(filled, "pause_queue", "mail")
    for path in ("/", "/queues", "/queue?name=mail"):
        page.goto(path)
        marks = page.locator('main svg.g:has(use[href^="#l-"])')
        assert marks.count(), path
        assert marks.evaluate_all("all => all.every((each) => getComputedStyle(each).stroke === 'none')"), path
