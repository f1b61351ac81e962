-- Reads an entity: its value, the time in seconds and microseconds, the first ARGV[1] of its leases in KEYS[2] with their
-- ends, and how many there are. Leases whose end is not after the time of the state are left out.

local value, time = redis.call('GET', KEYS[1]), redis.call('TIME')
if not value or #value < 64 or unpack('<d', value, 41) ~= 1 then
  return {value, time[1], time[2], {}, 0}
end
local after = string.format('(%.0f', (unpack('<d', value, 17)))
return {value, time[1], time[2],
  redis.call('ZRANGEBYSCORE', KEYS[2], after, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[1]),
  redis.call('ZCOUNT', KEYS[2], after, '+inf')}
