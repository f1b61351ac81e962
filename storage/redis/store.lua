-- The end of the script: the state is stored.

local reply = #answers == 1 and answers[1] or table.concat(answers)
if not known then
  return reply
end

-- The entity is kept until it would be as good as new. While plain tokens are out that is MaxHold after its last run,
-- when their holders count as dead; by a caller's clock, about which this server's says nothing, MaxHold after the last
-- call.
local ttl, ran = till - millis, OpsLast > Start and OpsLast or Start
if clock == 1 then
  ttl = math.max(ARGV[2], needed - ran, till - (now or OpsLast))
elseif InUse > 0 then
  ttl = ran + ARGV[2]
  ttl = (ttl > needed and ttl or needed) - millis
end

-- A state with a number too large to be exact is refused. So no Until is as large as limit, which here means never.
if inexact or OpsLast <= -limit or WaitLast <= -limit or till >= limit or OpsCapacity >= limit
  or OpsCapacity <= -limit or WaitCapacity >= limit or WaitCapacity <= -limit or InUse >= limit then
  return redis.error_reply('DRIPRANGE')
end
if micros <= revision then
  micros = revision + 1
end
if ttl < 1 then
  ttl = 1
elseif ttl > longest then
  ttl = longest
elseif InUse > 0 and ttl - ARGV[2] == 0 then -- as mostly; Redis takes a third of a microsecond to write a number
  ttl = ARGV[2]
end
call('SET', KEYS[1], pack('>i8i8i8i8i8i8i8i8', micros, clock,
  OpsLast, OpsCapacity, WaitLast, WaitCapacity, InUse, Until) .. booked, 'PX', ttl)
return reply
