-- Stores states if nobody has changed the ones that they were decided on.
--
-- KEYS     of each entity its key, and the set of its leases. The set is removed, for the state that is stored has its own
-- ARGV[1]  the times of this server between which the states may be stored, in microseconds, as two doubles
-- ARGV[2…] of each entity six: the revision of the state before as a double, empty for no value; what the value has before
--          the revision, and what it has behind: see decide.lua.tmpl; the time of the state in milliseconds, how many it is
--          kept, and how many at least if that is not this server's time, in decimal
--
-- Returns the time in microseconds. If it is out of bounds, or if a revision is another, nothing has changed: then it
-- returns 0, or the number of the first such entity below 0.

local call, sub = redis.call, string.sub
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local from, till = unpack('<dd', ARGV[1])
if now < from or now > till then
  return 0
end
local revisions = {}
for i = 1, #KEYS, 2 do
  local head, expected = call('GETRANGE', KEYS[i], 0, 63), ARGV[3 * i - 1]
  if #head < 64 and call('EXISTS', KEYS[i]) == 1 then
    return redis.error_reply('DRIPSTATE')
  end
  if sub(head, 9, 16) ~= expected then
    return -(i + 1) / 2
  end
  revisions[i] = now
  if #head > 0 then
    local before, apart = unpack('<d', head, 9), unpack('<d', head, 41)
    revisions[i] = math.max(now, before + 1)
    revisions[i + 1] = apart == 1
  end
end
for i = 1, #KEYS, 2 do
  local from = 3 * i - 1
  local keep, hold = tonumber(ARGV[from + 4]), tonumber(ARGV[from + 5])
  if math.abs(ARGV[from + 3] - now / 1000) > 60000 then
    keep = math.max(keep, hold)
  end
  call('SET', KEYS[i], ARGV[from + 1] .. pack('<d', revisions[i]) .. ARGV[from + 2], 'PX', math.min(math.max(keep, 1), 2 ^ 43))
  if revisions[i + 1] then
    call('UNLINK', KEYS[i + 1])
  end
end
return now
