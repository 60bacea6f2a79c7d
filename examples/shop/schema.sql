-- The shop's own tables, beside the queue. The trigger is a producer without Python.

create schema pgqueue_demo;
comment on schema pgqueue_demo is 'The demo of pgqueue (pgqueue demo). Dropped and created again at each run.';

create table pgqueue_demo.runs (first_id bigint not null);
comment on column pgqueue_demo.runs.first_id is 'The jobs of this run of the demo have higher ids.';

create table pgqueue_demo.orders (
    id bigint generated always as identity primary key,
    customer text not null,
    cents integer not null check (cents > 0),
    coupon text,
    placed_at timestamptz not null default now(),
    confirmed_at timestamptz
);

create table pgqueue_demo.payments (
    id bigint generated always as identity primary key,
    order_id bigint not null unique references pgqueue_demo.orders (id),
    cents integer not null,
    paid_at timestamptz not null default now()
);

create function pgqueue_demo.payment_came()
returns trigger
language plpgsql
as $$
begin
    perform pgqueue.enqueue(
        'shop.write_receipt', jsonb_build_object('order_id', new.order_id), queue => 'critical', priority => 10
    );
    return null;
end
$$;

create trigger payment_came
after insert on pgqueue_demo.payments
for each row execute function pgqueue_demo.payment_came();
