create schema if not exists drip;

-- One row for each entity. No index covers a column that changes, and the free room on each page lets the new version of
-- a row stay beside the old one.
create table if not exists drip.entity (
  key           bytea   primary key, -- the entity, or the beginning of a long name and a hash
  revision      bigint  not null,    -- random; never 0
  expires       bigint  not null,    -- in milliseconds since 1970: from then on the entity counts as not stored
  callers_clock boolean not null,    -- the times in the state are a caller's, not this server's
  decided       bigint  not null,    -- storage.State.Now
  until         bigint  not null,    -- storage.State.Until
  leases        bigint  not null,    -- the number of its rows in the table of leases
  first_end     bigint  not null,    -- none of these ends earlier
  last_end      bigint  not null,    -- none of these ends later
  data          bytea   not null,    -- storage.State.Data
  entity        bytea                -- the entity, if its name is long
) with (fillfactor = 70);

-- One row for each lease. Whoever changes the leases of an entity changes the entity's row, too.
create table if not exists drip.lease (
  key  bytea  not null,
  id   bigint not null,
  ends bigint not null, -- in milliseconds since 1970
  primary key (key, id)
);
create index if not exists lease_ends on drip.lease (key, ends, id);
