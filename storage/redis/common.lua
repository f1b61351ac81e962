-- What all scripts begin with.
--
-- The value of a key is a sequence of big-endian int64: a revision, whose clock its times are (0: this server's, 1: a
-- caller's), and the Numbers of storage.State: six, or twenty-seven and more when it has a Booking.

local pack, unpack
local struct = rawget(_G, 'struct')
if struct then
  pack, unpack = struct.pack, struct.unpack
else -- in miniredis; for formats '>i8i8…' only
  function pack(_, ...)
    local bytes = {}
    for i, v in ipairs({...}) do
      for byte = 8 * i, 8 * i - 7, -1 do
        bytes[byte] = string.char(v % 256)
        v = math.floor(v / 256)
      end
    end
    return table.concat(bytes)
  end
  function unpack(format, s, from)
    local values = {}
    for i = 1, (#format - 1) / 2 do
      local at = (from or 1) + 8 * (i - 1)
      local v = s:byte(at)
      v = v < 128 and v or v - 256
      for byte = at + 1, at + 7 do
        v = 256 * v + s:byte(byte)
      end
      values[i] = v
    end
    return _G.unpack(values)
  end
end

local longest = 2 ^ 43 -- time to live in ms, 278 years: more is too much for those who count it in nanoseconds

local call = redis.call
local value = call('GET', KEYS[1])
if value and (#value < 64 or #value % 8 ~= 0) then
  return redis.error_reply('DRIPSTATE')
end
local time = call('TIME')
local micros = time[1] * 1000000 + time[2]
