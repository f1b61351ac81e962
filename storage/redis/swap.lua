-- Stores the states of groups of entities. A group is stored if nobody has changed the states that it was decided on.
--
-- KEYS  of each entity its key, and the set of its leases. The set is removed, for the state that is stored has its own
-- ARGV  of each group the number of its entities and the times of this server between which it may be stored, in microseconds,
--       as three doubles. Then of each entity five: the revision of the state before as a double, empty for no value; what the
--       value has before the revision, and what it has behind: see decide.lua.tmpl; how many milliseconds it is kept, in
--       decimal. The fifth is empty, or three doubles: the time of the state, how long it is kept, and how long if that is
--       not this server's time
--
-- Returns of each group the time in microseconds. Of a group that is not stored it is below 0: the time if that is out of
-- bounds, the number of an entity if the revision of that entity is another, and one less than of all entities if its value is
-- no state. After an error nothing has changed.

local call, sub = redis.call, string.sub
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local revisions = {} -- of the keys

local function store(key, arg)
  local n, from, till = unpack('<ddd', ARGV[arg])
  if now < from or now > till then
    return -now
  end
  for i = 0, n - 1 do
    local at = key + 2 * i
    local head, expected = redis.pcall('GETRANGE', KEYS[at], '0', '63'), ARGV[arg + 5 * i + 1]
    if type(head) ~= 'string' or #head < 64 and (head ~= '' or call('EXISTS', KEYS[at]) == 1) then
      return -n - 1
    end
    if sub(head, 9, 16) ~= expected then
      return -i - 1
    end
    revisions[at] = now
    if head ~= '' then
      local before, apart = unpack('<d', head, 9), unpack('<d', head, 41)
      if before >= now then
        revisions[at] = before + 1
      end
      revisions[at + 1] = apart == 1
    end
  end
  for i = 0, n - 1 do
    local at, from = key + 2 * i, arg + 5 * i
    local keep, far = ARGV[from + 4], ARGV[from + 5]
    if far ~= '' then
      local theirs, near, away = unpack('<ddd', far)
      keep = math.abs(theirs - now / 1000) > 60000 and away or near
    end
    call('SET', KEYS[at], ARGV[from + 2] .. pack('<d', revisions[at]) .. ARGV[from + 3], 'PX', keep)
    if revisions[at + 1] then
      call('UNLINK', KEYS[at + 1])
    end
  end
  return now
end

local results, key, arg = {}, 1, 1
while arg <= #ARGV do
  local n = unpack('<d', ARGV[arg])
  results[#results + 1] = string.format('%.0f', store(key, arg))
  key, arg = key + 2 * n, arg + 5 * n + 1
end
return table.concat(results, ' ')
