-- Reads an entity: its value, the time in seconds and microseconds, the first ARGV[1] of its leases in KEYS[2] with their
-- ends, and how many there are. Leases whose end is not after the time of the state are left out. If there are more than ARGV[1],
-- all that have ended by now are, unless the time of the state is not this server's.

local value, time = redis.call('GET', KEYS[1]), redis.call('TIME')
if not value or #value < 64 or unpack('<d', value, 41) ~= 1 then
  return {value, time[1], time[2], {}, 0}
end
local revision, now = unpack('<dd', value, 9)
local after = string.format('(%.0f', now)
local out = redis.call('ZCOUNT', KEYS[2], after, '+inf')
if out > tonumber(ARGV[1]) and math.abs(revision / 1000 - now) <= 60000 then
  after = string.format('(%.0f', math.max(now, time[1] * 1000 + math.floor(time[2] / 1000)))
  out = redis.call('ZCOUNT', KEYS[2], after, '+inf')
end
return {value, time[1], time[2],
  redis.call('ZRANGEBYSCORE', KEYS[2], after, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[1]), out}
