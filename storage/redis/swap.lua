-- Stores the values of groups of entities. A group is stored if nobody has changed the values that it was decided on. Those
-- have no set of leases.
--
-- KEYS  the keys of the entities of all groups
-- ARGV  of each group the number of its entities, the times of this server between which it may be stored, in microseconds,
--       and of each entity the revision of the value before, or 0 for no value: as doubles. Then of each entity the value, with
--       a later revision, and how many milliseconds it is kept, in decimal
--
-- Returns of each group the time in microseconds. Of a group that is not stored it is below 0: the time if that is out of
-- bounds, or the number of an entity with another revision.

local call, sub = redis.call, string.sub
local none = pack('<d', 0)
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

local function store(key, arg)
  local n, from, till = unpack('<ddd', ARGV[arg])
  if now < from or now > till then
    return -now
  end
  for i = 0, n - 1 do
    local revision = redis.pcall('GETRANGE', KEYS[key + i], '8', '15')
    if revision == '' and call('EXISTS', KEYS[key + i]) == 0 then
      revision = none
    end
    if revision ~= sub(ARGV[arg], 25 + 8 * i, 32 + 8 * i) then
      return -i - 1
    end
  end
  for i = 0, n - 1 do
    call('SET', KEYS[key + i], ARGV[arg + 2 * i + 1], 'PX', ARGV[arg + 2 * i + 2])
  end
  return now
end

local results, key, arg = {}, 1, 1
while arg <= #ARGV do
  local n = unpack('<d', ARGV[arg])
  results[#results + 1] = string.format('%.0f', store(key, arg))
  key, arg = key + n, arg + 2 * n + 1
end
return table.concat(results, ' ')
