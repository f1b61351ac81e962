-- Stores a state if nobody has changed the one that was read.
--
-- KEYS[1]  the entity's key
-- ARGV[1]  the revision that was read, as it is in the value; empty for no value
-- ARGV[2]  the value to store, from its clock on
-- ARGV[3]  for how many milliseconds
--
-- Returns 1, or 0 if the revision is another; then nothing has changed.

if ARGV[1] ~= (value and string.sub(value, 1, 8) or '') then
  return 0
end
if value then
  micros = math.max(micros, unpack('>i8', value) + 1)
end
call('SET', KEYS[1], pack('>i8', micros) .. ARGV[2], 'PX', math.min(ARGV[3], longest))
return 1
