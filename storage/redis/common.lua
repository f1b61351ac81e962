-- What both scripts begin with.
--
-- The value of a key is eight big-endian int64: a revision, whose clock its times are (0: this server's, 1: a
-- caller's), and the fields of storage.State in their order.

local pack, unpack
local struct = rawget(_G, 'struct')
if struct then
  pack, unpack = struct.pack, struct.unpack
else -- in miniredis; for formats '>i8i8…' only
  local several = _G.unpack
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
  function unpack(_, s)
    local values = {}
    for i = 1, #s / 8 do
      local v = s:byte(8 * i - 7)
      v = v < 128 and v or v - 256
      for byte = 8 * i - 6, 8 * i do
        v = 256 * v + s:byte(byte)
      end
      values[i] = v
    end
    return several(values)
  end
end

local longest = 2 ^ 43 -- time to live in ms, 278 years: more is too much for those who count it in nanoseconds

local value = redis.call('GET', KEYS[1])
if value and #value ~= 64 then
  return redis.error_reply('DRIPSTATE')
end
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
