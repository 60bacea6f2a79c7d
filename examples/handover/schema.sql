-- What another program reads, in order: a broker's relay, for one.
create table if not exists outbox (
    n bigint generated always as identity primary key,
    topic text not null,
    body jsonb not null
);
