-- Stores the values of groups of entities. A group is stored if nobody has changed the values that it was decided on. Those
-- have no set of leases.
--
-- KEYS  the keys of the entities of all groups
-- ARGV  of each group the number of its entities, the times of this server between which it may be stored, in microseconds,
--       and of each entity the revision of the value before, or 0 for no value: as doubles. Then of each entity the value, with
--       a later revision, and how many milliseconds it is kept, in decimal
--
-- Returns the time in microseconds, and behind it, of each group that is not stored, the number of the group and the number of
-- an entity with another revision, or 0 if the time is out of bounds.

local call, sub = redis.call, string.sub
local none = pack('<d', 0)
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

local function store(key, arg)
  local n, from, till = unpack('<ddd', ARGV[arg])
  if now < from or now > till then
    return 0
  end
  for i = 0, n - 1 do
    local revision = redis.pcall('GETRANGE', KEYS[key + i], '8', '15')
    if revision == '' and call('EXISTS', KEYS[key + i]) == 0 then
      revision = none
    end
    if revision ~= sub(ARGV[arg], 25 + 8 * i, 32 + 8 * i) then
      return i + 1
    end
  end
  for i = 0, n - 1 do
    call('SET', KEYS[key + i], ARGV[arg + 2 * i + 1], 'PX', ARGV[arg + 2 * i + 2])
  end
end

local results, group, key, arg = {string.format('%.0f', now)}, 0, 1, 1
while arg <= #ARGV do
  local n, refused = unpack('<d', ARGV[arg]), store(key, arg)
  if refused then
    results[#results + 1] = group .. ' ' .. refused
  end
  group, key, arg = group + 1, key + n, arg + 2 * n + 1
end
return table.concat(results, ' ')
