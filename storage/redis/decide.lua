-- This is storage/decide.go, and after it come admit.go and op.go: function by function, with the same names. What is
-- changed there is changed here, and storagetest.Compare finds what is not.
--
-- There are two differences. A Lua number is a double: numbers below 2^52 and sums of two are exact, and what is larger
-- is not stored, see op.lua. A product that is not exact is so large that it is not stored either, or that min takes the
-- other number; where neither is so, mul and div tell. And classic has local variables and few functions, because most
-- calls want nothing else, and to make tables and functions takes longer than all it calculates.

-- classic returns delay, bound and the ledgers. What follows a time is written out, and so is gain, once for the case
-- with a token and the one without; and bounds are numbers.
local function classic(Size, RefreshRate, RefreshInterval, WaitForToken, Concurrency,
  OpsLast, OpsCapacity, WaitLast, WaitCapacity, inUse, now)
  local token, t, last, capacity = inUse < Concurrency, now, OpsLast, OpsCapacity
  if not token then
    t = now + WaitForToken
    if WaitLast >= OpsLast then
      last, capacity = WaitLast, WaitCapacity
    end
  end
  local refreshes = (t - t % RefreshInterval - (last - last % RefreshInterval)) / RefreshInterval
  if refreshes > 0 then
    capacity = capacity + refreshes * RefreshRate
  end
  if capacity > Size then
    capacity = Size
  end
  if token and capacity > 0 then
    return 0, 0, now, capacity - 1, WaitLast, WaitCapacity
  elseif token then
    local began, last = now - now % RefreshInterval, WaitLast - WaitLast % RefreshInterval
    if last < began then
      WaitLast, WaitCapacity = began + RefreshInterval, RefreshRate
    elseif last == began then
      WaitLast = began + RefreshInterval
    end
  elseif now >= WaitLast and capacity > 0 then
    WaitLast, WaitCapacity = t, capacity
  elseif now >= WaitLast then
    WaitLast, WaitCapacity = t - t % RefreshInterval + RefreshInterval, RefreshRate
  end
  if WaitCapacity == 0 then
    WaitLast, WaitCapacity = WaitLast - WaitLast % RefreshInterval + RefreshInterval, RefreshRate
  end
  local delay = WaitLast - now
  return delay > 1 and delay or 1, token and 4 or 2, OpsLast, OpsCapacity, WaitLast, WaitCapacity - 1
end

if plain then
  for i = 3, #ARGV do
    local op = ARGV[i]
    if op == '\1' then -- ReturnToken
      answers[i - 2] = pack('>i8', InUse > 0 and 1 or 0)
      InUse = InUse > 0 and InUse - 1 or 0
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
        OpsLast, OpsCapacity, WaitLast, WaitCapacity, InUse, now > OpsLast and now or OpsLast)
      if delay == 0 then
        InUse = InUse + 1
      end
      answers[i - 2] = pack('>i8i8', delay, bound)
    end
    Until = limit
    if InUse == 0 or i == #ARGV then
      local most = (OpsCapacity < 0 and Size - OpsCapacity or Size) - 1
      inexact = inexact or most >= limit
      needed = ((most - most % RefreshRate) / RefreshRate + 2) * RefreshInterval
      needed = needed + (OpsLast > Start and OpsLast or Start)
      till = WaitLast + RefreshInterval
      till = till > needed and till or needed
      if InUse == 0 then
        Until = till
      end
    end
  end
end
