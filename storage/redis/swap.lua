-- Stores the values of groups of entities. A group is stored if nobody has changed the values that it was decided on. Those
-- have no set of leases.
--
-- KEYS     the keys of the entities of all groups
-- ARGV[1]  of each group the number of its entities, the times of this server between which it may be stored, in microseconds,
--          and of each entity the revision of the value before, or 0 for no value: as doubles
-- ARGV[2]  and so on: of each entity the value, with a later revision, and how many milliseconds it is kept, in decimal
--
-- Returns the time in microseconds, and behind it, of each group that is not stored, the number of the group and the number of
-- an entity with another revision, below zero if it has no value, or 0 if the time is out of bounds.

local call, pcall, sub, KEYS, ARGV = redis.call, redis.pcall, string.sub, KEYS, ARGV
local none = pack('<d', 0)
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local numbers = ARGV[1]

-- store stores a group of n entities, unless it returns what refuses it.
local function store(first, n, at, from, till)
  if now < from or now > till then
    return 0
  end
  for i = 1, n do
    local revision = pcall('GETRANGE', KEYS[first + i], '8', '15')
    local absent = revision == '' and call('EXISTS', KEYS[first + i]) == 0
    if absent then
      revision = none
    end
    if revision ~= sub(numbers, at + 16 + 8 * i, at + 23 + 8 * i) then
      return absent and -i or i
    end
  end
  for i = first + 1, first + n do
    call('SET', KEYS[i], ARGV[2 * i], 'PX', ARGV[2 * i + 1])
  end
end

local results, group, first, at = {string.format('%.0f', now)}, 0, 0, 1
while at < #numbers do
  local n, from, till = unpack('<ddd', numbers, at)
  local refused = store(first, n, at, from, till)
  if refused then
    results[#results + 1] = group .. ' ' .. refused
  end
  group, first, at = group + 1, first + n, at + 24 + 8 * n
end
return table.concat(results, ' ')
