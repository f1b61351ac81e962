create schema if not exists drip;

-- An entity a row. There is no index on expires, so that an update touches no index, and the room on each page lets the
-- new version of a row stay beside the old one.
create table if not exists drip.entity (
  key           bytea   primary key, -- the entity, or of a long name its beginning and a hash
  revision      bigint  not null,    -- at random; never 0
  expires       bigint  not null,    -- in milliseconds since 1970: from then on it counts as not stored
  ops_last      bigint  not null,    -- from here on storage.State, in the order of its Numbers
  ops_capacity  bigint  not null,
  wait_last     bigint  not null,
  wait_capacity bigint  not null,
  in_use        bigint  not null,
  until         bigint  not null,
  callers_clock boolean not null,    -- the times in the state are a caller's, not this server's
  booking       bigint[],            -- what follows in the Numbers
  entity        bytea                -- the entity, if its name is long
) with (fillfactor = 70);
