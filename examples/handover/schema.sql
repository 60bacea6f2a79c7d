-- Another program reads this table in the order of n: for example the relay of a message broker.
create table if not exists outbox (
    n bigint generated always as identity primary key,
    topic text not null,
    body jsonb not null
);
