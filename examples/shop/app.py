"""The shop's tasks, and the one function that its web front would call."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import psycopg

from pgqueue import App, Job

app = App()


def place_order(connection: psycopg.Connection, customer: str, cents: int, coupon: str | None = None) -> int:
    """Insert an order and enqueue its jobs in the caller's transaction: both or neither."""
    row = connection.execute(
        "insert into pgqueue_demo.orders (customer, cents, coupon) values (%s, %s, %s) returning id",
        (customer, cents, coupon),
    ).fetchone()
    assert row is not None
    order_id = int(row[0])
    confirm_order.enqueue(connection, order_id)
    if coupon is not None:
        redeem_coupon.enqueue(connection, order_id, coupon)
    return order_id


@app.task(name="shop.confirm_order", queue="default", retry_policy="fixed", retry_delay=timedelta(seconds=1))
async def confirm_order(job: Job, order_id: int) -> None:
    """Confirm an order and its payment. The trigger on payments enqueues the receipt."""
    if order_id == 7 and job.attempt <= 2:
        raise ConnectionError(f"the mail server does not answer (attempt {job.attempt})")
    async with await psycopg.AsyncConnection.connect(os.environ["SHOP_DSN"]) as connection:
        await connection.execute(
            "update pgqueue_demo.orders set confirmed_at = now() where id = %s and confirmed_at is null", (order_id,)
        )
        # A job may run twice. The second run must not pay again.
        await connection.execute(
            "insert into pgqueue_demo.payments (order_id, cents)"
            " select id, cents from pgqueue_demo.orders where id = %s on conflict (order_id) do nothing",
            (order_id,),
        )


@app.task(name="shop.write_receipt", queue="critical")
def write_receipt(order_id: int) -> None:
    """Write the receipt as a file, once."""
    with psycopg.connect(os.environ["SHOP_DSN"]) as connection:
        row = connection.execute(
            "select customer, cents from pgqueue_demo.orders where id = %s", (order_id,)
        ).fetchone()
    assert row is not None, f"there is no order {order_id}"
    receipt = Path(os.environ["SHOP_RECEIPTS"], f"order-{order_id}.txt")
    unfinished = receipt.with_suffix(f".{os.getpid()}.part")
    unfinished.write_text(f"Receipt for order {order_id}\n{row[0]}\n{row[1] / 100:.2f} EUR\n")
    unfinished.rename(receipt)


@app.task(name="shop.pack_parcel", queue="default")
def pack_parcel(seconds: float) -> None:
    """Take some time. The demo kills the worker that runs it."""
    time.sleep(seconds)


@app.task(
    name="shop.redeem_coupon", queue="default", max_attempts=3, retry_policy="fixed", retry_delay=timedelta(seconds=0.5)
)
def redeem_coupon(order_id: int, coupon: str) -> None:
    """Redeem a coupon. A coupon that is not a number fails every attempt, so its job is dead in the end."""
    int(coupon)
