"""Hand a due job over to another system and complete it, in one transaction.

`release_order` waits in pgqueue until an order is due. Then it writes the order to two other queues: a table that
another program reads (for example an outbox for a message broker), and a queue of pgqueue that other workers serve.
Whatever fails in between (the process is killed, the lease is lost), the order is either still a job here, or in both
queues, once.

    psql -f examples/handover/schema.sql
    pgqueue worker -r examples.handover.app -q orders
    pgqueue enqueue release_order '{"order_id": 17}' --queue orders --delay '1 hour'
"""

from __future__ import annotations

from pgqueue import App, Job, enqueue

app = App()


@app.task(queue="orders")
def release_order(job: Job, order_id: int) -> None:
    """Write the order to both queues. The two writes and the end of this job are committed together."""
    with job.transaction() as connection:
        connection.execute(
            "insert into outbox (topic, body) values ('orders', jsonb_build_object('id', %s::int))", [order_id]
        )
        enqueue(connection, "pack_order", {"order_id": order_id}, queue="warehouse")


@app.task(queue="orders")
async def release_order_async(job: Job, order_id: int) -> None:
    """The same on the event loop."""
    async with job.transaction() as connection:
        await connection.execute(
            "insert into outbox (topic, body) values ('orders', jsonb_build_object('id', %s::int))", [order_id]
        )
        await enqueue(connection, "pack_order", {"order_id": order_id}, queue="warehouse")
