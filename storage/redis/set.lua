-- Stores a value if nobody has changed the one before.
--
-- KEYS  its key, and the set of its leases. The set is removed, for the value has its own
-- ARGV  the revision of the value before as a double, empty for no value; what the value has before the revision, and what it
--       has behind: see decide.lua.tmpl; three doubles: the time of the state, how many milliseconds it is kept, and how many if
--       that is not this server's time
--
-- Returns 1, or 0 if the revision is another, or -1 if the key holds no state.

local head = redis.pcall('GETRANGE', KEYS[1], '0', '63')
if type(head) ~= 'string' or #head < 64 and (head ~= '' or redis.call('EXISTS', KEYS[1]) == 1) then
  return -1
elseif string.sub(head, 9, 16) ~= ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local revision = time[1] * 1000000 + time[2]
local theirs, near, away = unpack('<ddd', ARGV[4])
local keep = math.abs(theirs - revision / 1000) > 60000 and away or near
local apart = 0
if head ~= '' then
  revision, apart = math.max(revision, unpack('<d', head, 9) + 1), unpack('<d', head, 41)
end
redis.call('SET', KEYS[1], ARGV[2] .. pack('<d', revision) .. ARGV[3], 'PX', keep)
if apart == 1 then
  redis.call('UNLINK', KEYS[2])
end
return 1
