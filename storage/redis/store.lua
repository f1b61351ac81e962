-- The end of the script: the state is stored.

if not known then
  return answers
end

-- The entity is kept until it would be as good as new. While plain tokens are out that is by MaxHold after its last run,
-- when their holders count as dead; by a caller's clock, about which this server's says nothing, for that long after
-- the last call.
local from = max(s.OpsLast, Start)
local ttl = till - millis
if clock == 1 then
  ttl = max(MaxHold, needed - from, till - (now or s.OpsLast))
elseif s.InUse > 0 then
  ttl = max(from + MaxHold, needed) - millis
end

-- A state with a number too large to be exact is refused. So no Until is as large as limit, which here means never.
if inexact or s.OpsLast <= -limit or s.WaitLast <= -limit or till >= limit or s.OpsCapacity >= limit
  or s.OpsCapacity <= -limit or s.WaitCapacity >= limit or s.WaitCapacity <= -limit or s.InUse >= limit then
  return redis.error_reply('DRIPRANGE')
end
redis.call('SET', KEYS[1], pack('>i8i8i8i8i8i8i8i8', max(micros, revision + 1), clock,
  s.OpsLast, s.OpsCapacity, s.WaitLast, s.WaitCapacity, s.InUse, s.Until) .. booked, 'PX', min(max(1, ttl), longest))
return answers
