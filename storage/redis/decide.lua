-- This is storage/decide.go, and after it come admit.go and op.go: function by function in the same order, with the
-- same names. What is changed there is changed here, and storagetest.Compare finds what is not.
--
-- There is one difference: a Lua number is a double. Numbers below 2^52 and sums of two are exact, and what is larger
-- is not stored: see exact. A product that is not exact is so large that it is not stored either, or that min takes the
-- other number; where neither is so, mul and div tell.

local gain, refreshes, following, interval

local function New()
  return {
    OpsLast = l.Start, OpsCapacity = 0, WaitLast = l.Start - l.RefreshInterval, WaitCapacity = 0, InUse = 0, Until = 0,
  }
end

local BoundNone, BoundClosed, BoundTokens, BoundBooked, BoundWindow = 0, 1, 2, 3, 4

local function classic(now, inUse)
  local bound
  if inUse < l.Concurrency then
    local capacity = gain(l, s.OpsLast, s.OpsCapacity, now)
    if capacity > 0 then
      s.OpsLast, s.OpsCapacity = now, capacity - 1
      return 0, BoundNone
    end
    local n, last = interval(l, now), interval(l, s.WaitLast)
    if last < n then
      s.WaitLast, s.WaitCapacity = following(l, now)
    elseif last == n then
      s.WaitLast = following(l, now)
    end
    bound = BoundWindow
  else
    bound = BoundTokens
    if now >= s.WaitLast then
      local next, last, capacity = now + l.WaitForToken, s.WaitLast, s.WaitCapacity
      if s.WaitLast < s.OpsLast then
        last, capacity = s.OpsLast, s.OpsCapacity
      end
      capacity = gain(l, last, capacity, next)
      if capacity > 0 then
        s.WaitLast, s.WaitCapacity = next, capacity
      else
        s.WaitLast, s.WaitCapacity = following(l, next)
      end
    end
  end
  if s.WaitCapacity == 0 then
    s.WaitLast, s.WaitCapacity = following(l, s.WaitLast)
  end
  s.WaitCapacity = s.WaitCapacity - 1
  return max(1, s.WaitLast - now), bound
end

function gain(w, last, capacity, t)
  return min(w.Size, capacity + refreshes(w, last, t) * w.RefreshRate)
end

function refreshes(w, from, t)
  return max(0, interval(w, t) - interval(w, from))
end

function following(w, t)
  return t + (w.RefreshInterval - t % w.RefreshInterval), w.RefreshRate
end

function interval(w, t)
  return (t - t % w.RefreshInterval) / w.RefreshInterval
end

-- div is a / b in whole numbers, for a >= 0 and b > 0.
local function div(a, b)
  inexact = inexact or a >= limit
  return (a - a % b) / b
end

-- full is when a window will be that had the capacity left at the time from.
local function full(w, from, capacity)
  return from + (div(max(w.Size, w.Size - capacity) - 1, w.RefreshRate) + 2) * w.RefreshInterval
end

s = s or New()
if plain then
  -- Then Apply comes to little more than classic. It is written down again because most calls want nothing else, and
  -- because what follows takes longer to make than this to run.
  local n = 0
  for i = 2, #ARGV do
    local op = ARGV[i]
    if op == '\1' then -- ReturnToken
      n = n + 1
      answers[n] = s.InUse > 0 and 1 or 0
      s.InUse = max(0, s.InUse - 1)
    else
      known, clock, now = true, 0, millis
      if op ~= '\0' then
        clock, now = 1, unpack('>i8', op, 2)
      end
      if now >= s.Until and s.InUse == 0 then
        s = New()
      end
      local delay, bound = classic(max(now, s.OpsLast), s.InUse)
      if delay == 0 then
        s.InUse = s.InUse + 1
      end
      answers[n + 1], answers[n + 2] = delay, bound
      n = n + 2
    end
    s.Until = limit
    if s.InUse == 0 or i == #ARGV then
      needed = full(l, max(s.OpsLast, Start), s.OpsCapacity)
      till = max(needed, s.WaitLast + RefreshInterval)
      s.Until = s.InUse > 0 and limit or till
    end
  end
  booked = ''
end
