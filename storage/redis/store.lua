-- The end of the script: the state is stored.

if not known then
  return answers
end

-- The entity is kept until it would be as good as new. While plain tokens are out that is MaxHold after its last run,
-- when their holders count as dead; by a caller's clock, about which this server's says nothing, MaxHold after the last
-- call.
local ttl = till - millis
if clock == 1 then
  ttl = max(MaxHold, needed - max(OpsLast, Start), till - (now or OpsLast))
elseif InUse > 0 then
  ttl = max(max(OpsLast, Start) + MaxHold, needed) - millis
end

-- A state with a number too large to be exact is refused. So no Until is as large as limit, which here means never.
if inexact or OpsLast <= -limit or WaitLast <= -limit or till >= limit or OpsCapacity >= limit
  or OpsCapacity <= -limit or WaitCapacity >= limit or WaitCapacity <= -limit or InUse >= limit then
  return redis.error_reply('DRIPRANGE')
end
redis.call('SET', KEYS[1], pack('>i8i8i8i8i8i8i8i8', max(micros, revision + 1), clock,
  OpsLast, OpsCapacity, WaitLast, WaitCapacity, InUse, Until) .. booked, 'PX', min(max(1, ttl), longest))
return answers
