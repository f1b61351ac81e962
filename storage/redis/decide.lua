-- This is storage/decide.go, and after it come admit.go and op.go: function by function, with the same names. What is
-- changed there is changed here, and storagetest.Compare finds what is not.
--
-- There are two differences. A Lua number is a double: numbers below 2^52 and sums of two are exact, and what is larger
-- is not stored, see op.lua. A product that is not exact is so large that it is not stored either, or that min takes the
-- other number; where neither is so, mul and div tell. And classic has local variables and few functions, because most
-- calls want nothing else, and to make tables and functions takes longer than all it calculates.

local function gain(Size, RefreshRate, RefreshInterval, last, capacity, t)
  local refreshes = (t - t % RefreshInterval - (last - last % RefreshInterval)) / RefreshInterval
  if refreshes > 0 then
    capacity = capacity + refreshes * RefreshRate
  end
  return capacity < Size and capacity or Size
end

-- classic returns delay, bound and the ledgers. What follows a time is written out, and bounds are numbers.
local function classic(Size, RefreshRate, RefreshInterval, WaitForToken, Concurrency,
  OpsLast, OpsCapacity, WaitLast, WaitCapacity, inUse, now)
  local bound
  if inUse < Concurrency then
    local capacity = gain(Size, RefreshRate, RefreshInterval, OpsLast, OpsCapacity, now)
    if capacity > 0 then
      return 0, 0, now, capacity - 1, WaitLast, WaitCapacity
    end
    local began, last = now - now % RefreshInterval, WaitLast - WaitLast % RefreshInterval
    if last < began then
      WaitLast, WaitCapacity = began + RefreshInterval, RefreshRate
    elseif last == began then
      WaitLast = began + RefreshInterval
    end
    bound = 4
  else
    bound = 2
    if now >= WaitLast then
      local next, last, capacity = now + WaitForToken, WaitLast, WaitCapacity
      if WaitLast < OpsLast then
        last, capacity = OpsLast, OpsCapacity
      end
      capacity = gain(Size, RefreshRate, RefreshInterval, last, capacity, next)
      if capacity > 0 then
        WaitLast, WaitCapacity = next, capacity
      else
        WaitLast, WaitCapacity = next - next % RefreshInterval + RefreshInterval, RefreshRate
      end
    end
  end
  if WaitCapacity == 0 then
    WaitLast, WaitCapacity = WaitLast - WaitLast % RefreshInterval + RefreshInterval, RefreshRate
  end
  local delay = WaitLast - now
  return delay > 1 and delay or 1, bound, OpsLast, OpsCapacity, WaitLast, WaitCapacity - 1
end

if plain then
  local n = 0
  for i = 2, #ARGV do
    local op = ARGV[i]
    if op == '\1' then -- ReturnToken
      n = n + 1
      answers[n] = InUse > 0 and 1 or 0
      InUse = max(0, InUse - 1)
    else
      known, clock, now = true, 0, millis
      if op ~= '\0' then
        clock, now = 1, unpack('>i8', op, 2)
      end
      if now >= Until and InUse == 0 then
        OpsLast, OpsCapacity, WaitLast, WaitCapacity = Start, 0, Start - RefreshInterval, 0
      end
      local delay, bound
      delay, bound, OpsLast, OpsCapacity, WaitLast, WaitCapacity = classic(
        Size, RefreshRate, RefreshInterval, WaitForToken, Concurrency,
        OpsLast, OpsCapacity, WaitLast, WaitCapacity, InUse, max(now, OpsLast))
      if delay == 0 then
        InUse = InUse + 1
      end
      answers[n + 1], answers[n + 2] = delay, bound
      n = n + 2
    end
    Until = limit
    if InUse == 0 or i == #ARGV then
      local most = max(Size, Size - OpsCapacity) - 1
      inexact = inexact or most >= limit
      needed = max(OpsLast, Start) + ((most - most % RefreshRate) / RefreshRate + 2) * RefreshInterval
      till = max(needed, WaitLast + RefreshInterval)
      if InUse == 0 then
        Until = till
      end
    end
  end
end
