"""Hand a due job over to something else, and acknowledge it, in one transaction.

`release_order` waits in pgqueue until an order is due. Then it goes to two other queues at once: a table that another
program reads (an outbox for a message broker, say), and a queue of pgqueue that other workers serve. Whatever happens
meanwhile (the process is killed, the lease is lost), the order is either still a job here, or stands in both, once.

    psql -f examples/handover/schema.sql
    pgqueue worker -r examples.handover.app -q orders
    pgqueue enqueue release_order '{"order_id": 17}' --queue orders --delay '1 hour'
"""

from __future__ import annotations

from pgqueue import App, Job, enqueue

app = App()


@app.task(queue="orders")
def release_order(order_id: int, job: Job) -> None:
    """Hand the order over: the two writes and the end of this job are committed together."""
    with job.transaction() as connection:
        connection.execute(
            "insert into outbox (topic, body) values ('orders', jsonb_build_object('id', %s::int))", [order_id]
        )
        enqueue(connection, "pack_order", {"order_id": order_id}, queue="warehouse")


@app.task(queue="orders")
async def release_order_async(order_id: int, job: Job) -> None:
    """The same on the event loop."""
    async with job.transaction() as connection:
        await connection.execute(
            "insert into outbox (topic, body) values ('orders', jsonb_build_object('id', %s::int))", [order_id]
        )
        await enqueue(connection, "pack_order", {"order_id": order_id}, queue="warehouse")
