-- Stores a state if nobody has changed the one that was read.
--
-- KEYS[1]  the entity's key
-- KEYS[2]  the set of its leases. It is removed, for the state that is stored has its own
-- ARGV[1]  the revision that was read as a double; empty for no value
-- ARGV[2]  what the value has before the revision, ARGV[3] what it has behind: see decide.lua.tmpl
-- ARGV[4]  the time of the state in milliseconds, ARGV[5] how many it is kept, and ARGV[6] how many at least if that is
--          not this server's time, in decimal
--
-- Returns 1, or 0 if the revision is another; then nothing has changed.

local value, time = redis.call('GET', KEYS[1]), redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
if value and #value < 64 then
  return redis.error_reply('DRIPSTATE')
end
if ARGV[1] ~= (value and string.sub(value, 9, 16) or '') then
  return 0
end
if value then
  micros = math.max(micros, unpack('<d', value, 9) + 1)
end
local keep = tonumber(ARGV[5])
if math.abs(ARGV[4] - micros / 1000) > 60000 then
  keep = math.max(keep, tonumber(ARGV[6]))
end
redis.call('SET', KEYS[1], ARGV[2] .. pack('<d', micros) .. ARGV[3], 'PX', math.min(math.max(keep, 1), 2 ^ 43))
redis.call('UNLINK', KEYS[2])
return 1
