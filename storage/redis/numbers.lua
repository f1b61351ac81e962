-- What all scripts begin with. Numbers are doubles, the lowest byte first: of all formats Redis reads and writes these in
-- the least time.

local pack, unpack
if rawget(_G, 'struct') then
  pack, unpack = struct.pack, struct.unpack
else -- in miniredis
  function pack(_, ...)
    local bytes = {}
    for i, v in ipairs({...}) do
      if type(v) == 'string' then -- the last one
        bytes[8 * i - 7] = v
        break
      end
      local m, e = math.frexp(math.abs(v))
      m, e = m * 2 ^ 53, v == 0 and 0 or e + 1022
      for byte = 8 * i - 7, 8 * i - 2 do
        bytes[byte] = string.char(m % 256)
        m = math.floor(m / 256)
      end
      bytes[8 * i - 1] = string.char(m % 16 + e % 16 * 16)
      bytes[8 * i] = string.char(math.floor(e / 16) + (v < 0 and 128 or 0))
    end
    return table.concat(bytes)
  end
  function unpack(format, s, from)
    local values = {}
    for i = 1, #format - 1 do
      local at = (from or 1) + 8 * (i - 1)
      local high, low = s:byte(at + 7), s:byte(at + 6)
      local m, e = 16 + low % 16, high % 128 * 16 + math.floor(low / 16)
      for byte = at + 5, at, -1 do
        m = m * 256 + s:byte(byte)
      end
      values[i] = e == 0 and 0 or (high > 127 and -1 or 1) * math.ldexp(m, e - 1075)
    end
    return _G.unpack(values)
  end
end

