create schema if not exists drip;

-- An entity a row. There is no index on expires, so that an update touches no index, and the room on each page lets the
-- new version of a row stay beside the old one.
create table if not exists drip.entity (
  key           bytea   primary key, -- the entity, or of a long name its beginning and a hash
  revision      bigint  not null,    -- at random; never 0
  state         bytea   not null,    -- storage.State
  expires       bigint  not null,    -- in milliseconds since 1970: from then on it counts as not stored
  callers_clock boolean not null,    -- the times in the state are a caller's, not this server's
  entity        bytea                -- the entity, if its name is long
) with (fillfactor = 70);
