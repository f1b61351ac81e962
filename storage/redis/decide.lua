-- Runs operations of one entity in their order: storage.Limits.Decide and Return, beside the data.
--
-- KEYS[1]    the entity's key
-- ARGV[1]    big-endian int64: Size, RefreshRate, RefreshInterval, WaitForToken and Start of the Limits, and
--            Options.MaxHold in milliseconds
-- ARGV[2..]  the operations: 'd' decides by this server's clock, a number decides at that time, 'r' returns a token
--
-- Returns a number for each operation: the delay of a decision, 0 for a return. After an error nothing has changed.

local max, min = math.max, math.min
local Size, RefreshRate, RefreshInterval, WaitForToken, Start, MaxHold = unpack('>i8i8i8i8i8i8', ARGV[1])
local OpsLast, OpsCapacity, WaitLast, WaitCapacity, InUse

-- From here on this is storage/decide.go, function by function and line by line. What is changed there is changed
-- here, and FuzzScript finds what is not. There is one difference: a Lua number is a double. Numbers below 2^52 and
-- sums of two are exact, products are exact or well above Size, and what is larger is not stored: see the end.

local gain, following, interval

local function Decide(now)
  now = max(now, OpsLast)
  if InUse < Size then
    OpsCapacity = gain(OpsLast, OpsCapacity, now)
    if OpsCapacity > 0 then
      OpsLast, OpsCapacity = now, OpsCapacity - 1
      InUse = InUse + 1
      return 0
    end
    local n, last = interval(now), interval(WaitLast)
    if last < n then
      WaitLast, WaitCapacity = following(now)
    elseif last == n then
      WaitLast = following(now)
    end
  elseif now >= WaitLast then
    local next, last, capacity = now + WaitForToken, WaitLast, WaitCapacity
    if WaitLast < OpsLast then
      last, capacity = OpsLast, OpsCapacity
    end
    capacity = gain(last, capacity, next)
    if capacity > 0 then
      WaitLast, WaitCapacity = next, capacity
    else
      WaitLast, WaitCapacity = following(next)
    end
  end
  if WaitCapacity == 0 then
    WaitLast, WaitCapacity = following(WaitLast)
  end
  WaitCapacity = WaitCapacity - 1
  return max(1, WaitLast - now)
end

function gain(last, capacity, t)
  local refreshes = max(0, interval(t) - interval(last))
  return min(Size, capacity + refreshes * RefreshRate)
end

function following(t)
  local into = t % RefreshInterval
  return t + (RefreshInterval - into), RefreshRate
end

function interval(t)
  return (t - t % RefreshInterval) / RefreshInterval
end

local revision, clock = 0, 0
if value then -- else Limits.New
  revision, clock, OpsLast, OpsCapacity, WaitLast, WaitCapacity, InUse = unpack('>i8i8i8i8i8i8i8', value)
else
  OpsLast, OpsCapacity, WaitLast, WaitCapacity, InUse = Start, 0, Start - RefreshInterval, 0, 0
end
local millis = (micros - micros % 1000) / 1000
local answers, changed, now = {}, false, nil
for i = 2, #ARGV do
  local op, delay = ARGV[i], 0
  if op ~= 'r' then
    if op == 'd' then
      clock, now = 0, millis
    else
      clock, now = 1, tonumber(op)
    end
    delay, changed = Decide(now), true
  elseif InUse > 0 then -- Limits.Return
    InUse, changed = InUse - 1, true
  end
  answers[i - 1] = delay
end
if not changed then
  return answers
end

-- Limits.until. While tokens are out the entity is kept for MaxHold after its last run, or until its bucket would be
-- full; by a caller's clock, about which this server's says nothing, for that long after the last call.
local from = max(OpsLast, Start)
local refill = ((Size - 1 - (Size - 1) % RefreshRate) / RefreshRate + 2) * RefreshInterval
local till = max(from + refill, WaitLast + RefreshInterval)
local hold = max(MaxHold, refill)
local ttl = till - millis
if clock == 1 then
  ttl = max(hold, till - (now or OpsLast))
elseif InUse > 0 then
  ttl = from + hold - millis
end

-- A state with a number too large to be exact is refused. So no Until is as large as limit, which here means never.
local limit = 2 ^ 52
if OpsLast <= -limit or WaitLast <= -limit or till >= limit or OpsCapacity < 0 or OpsCapacity >= limit
  or WaitCapacity < 0 or WaitCapacity >= limit or InUse >= limit then
  return redis.error_reply('DRIPRANGE')
end
redis.call('SET', KEYS[1], pack('>i8i8i8i8i8i8i8i8', max(micros, revision + 1), clock,
  OpsLast, OpsCapacity, WaitLast, WaitCapacity, InUse, InUse > 0 and limit or till), 'PX', min(max(1, ttl), longest))
return answers
