-- This is storage/admit.go.

-- To make a function takes longer than to run it: the longer, the more variables outside it uses, and the more were
-- declared after those. So only the functions are made that the operations asked for need, constants are inside, and
-- the variables that most of them use come last.
local GetDelay, ReturnToken, Admit, Settle, Cancel, Renew, Throttle, Pause, Resume, Reset = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
local asked = {}
for i = 3, #ARGV do
  asked[string.byte(ARGV[i])] = true
end

local decide, bound, promise, apart, queue, quarters, root, spend, lease, book, quiet
local settle, charge, cancel, renew, throttle, reset, forget, until_, booking, adopt, inUse, hold, release, unbook, tidy
local spare, dry, gain, capacity, refreshes, interval, none, grace, tickets, units, mul, div
local Lease, MaxLease = unpack('>i8i8', ARGV[1], 49)

-- What Admit needs besides classic. A window is a table of its three numbers: windows[0] is the first one, those of
-- Limits.Windows follow. A line is a table of its Last and, from 0, the capacities of the windows. b is the Booking, nil
-- if there is none, and b.windows are its windows.
local late, wait, ops = nil, {Last = WaitLast, [0] = WaitCapacity}, {Last = OpsLast, [0] = OpsCapacity}
local windows = {[0] = {Size = Size, RefreshRate = RefreshRate, RefreshInterval = RefreshInterval}}
local sub, max, min, b = string.sub, math.max, math.min, nil

if asked[GetDelay] or asked[Admit] then
  -- admit is the op of Admit, nil for GetDelay.
  function decide(admit, now)
    local BoundNone, BoundTokens = 0, 2
    local cost, t, again = 1, nil, 0
    if admit then
      cost, t = admit.Cost, admit.Ticket
    end
    local back = admit and t.Epoch > 0 and t.Slot <= max(now, b.Old.Last, b.New.Last)
    if back then
      unbook(t, now)
      again = t.Again
    end
    local due = back and t.Slot <= now
    local delay, why, slot = 0, nil, nil
    if not b or not back and cost == 1 and quiet(now) and #windows == 0
      and not (admit and b.Samples > 0 and inUse() >= Concurrency) then
      delay, why, ops.Last, ops[0], wait.Last, wait[0] = classic(Size, RefreshRate, RefreshInterval, WaitForToken,
        Concurrency, ops.Last, ops[0], wait.Last, wait[0], inUse(), now)
      slot = wait.Last
    else
      why = bound(cost, due, now)
      local short = inUse() >= Concurrency or not back and now < b.Claim
      if why == BoundNone and short then
        why = BoundTokens
      elseif why == BoundNone then
        spend(ops, now, cost)
      end
      if why ~= BoundNone then
        if back and not due then
          slot = t.Slot
        elseif not due then
          slot = promise(wait, cost, units(), now)
        elseif why == BoundTokens then
          slot = 0
        elseif again == 0 then
          slot = promise(late, cost, 0, now)
          again = 1
        else
          slot = promise(wait, cost, units(), now)
        end
        if short and (due or not back) then
          slot = max(slot, now + queue(t, due, now))
        end
        delay = max(1, slot - now)
      end
    end
    if delay == 0 and admit then
      return delay, why, lease(cost, now)
    elseif delay == 0 then
      InUse = InUse + 1
    elseif admit then
      local number = t.Number
      if not back then
        b.Next = b.Next + 1
        number = b.Next
      end
      return delay, why, book(slot, cost, number, again, now)
    end
    return delay, why
  end

  function bound(cost, due, now)
    local BoundNone, BoundClosed, BoundBooked, BoundWindow = 0, 1, 3, 4
    if now < b.Closed then
      return BoundClosed
    end
    local booked = due and 0 or units()
    for i = 0, #windows do
      local c = capacity(ops, i, now)
      if c < cost then
        return BoundWindow + i
      elseif c - booked < cost then
        return BoundBooked
      end
    end
    return BoundNone
  end

  function promise(line, cost, booked, now)
    local open = max(now, b.Closed)
    local ahead = line.Last > open
    if not ahead then
      for i = 0, #windows do
        line[i] = capacity(ops, i, open) - booked
      end
      line.Last = open
    end
    local slot = max(line.Last, now + 1)
    for i = 0, #windows do
      local w, missing = windows[i], cost - line[i]
      if missing > 0 then
        local intervals = div(missing - 1, w.RefreshRate) + 1
        slot = max(slot, (interval(w, line.Last) + intervals) * w.RefreshInterval)
      end
    end
    if ahead then
      slot = max(slot, line.Last + apart(now))
    end
    spend(line, slot, cost)
    return slot
  end

  function apart(now)
    for i = 0, #windows do
      local w = windows[i]
      if Concurrency < w.RefreshRate then
        local each = quarters(8, now)
        if each * w.RefreshRate <= w.RefreshInterval then
          return each
        end
      end
    end
    return 0
  end

  function queue(t, due, now)
    local n = tickets() + 1
    if not due then
      return quarters(4 * n - 8 * root(n), now)
    end
    b.Claim = min(max(b.Claim, now) + quarters(1, now), now + quarters(n, now))
    n = max(1, min(n, t.Number - (b.Next - n)))
    local each = apart(now)
    if each > 0 then
      return mul(n, each)
    end
    return max(quarters(4 * n - 8 * root(n), now), b.Claim - now)
  end

  function quarters(n, now)
    local mostSamples = 64
    local held, samples = b.Held + WaitForToken, b.Samples + 1
    if b.Samples < mostSamples then
      for at = 1, #b.Leases, 16 do
        local id = unpack('>i8', b.Leases, at)
        local age = now - div(id, 1024)
        if age > div(held, samples) then
          held, samples = held + age, samples + 1
        end
      end
    end
    return max(1, div(mul(max(1, n), held), mul(4, mul(Concurrency, samples))))
  end

  function root(n)
    return math.floor(math.sqrt(n))
  end

  function spend(line, t, cost)
    for i = 0, #windows do
      line[i] = capacity(line, i, t) - cost
    end
    line.Last = t
  end

  -- lease returns the five of Lease.
  function lease(cost, now)
    b.LastID = max(b.LastID + 1, max(0, now) * 1024)
    hold(b.LastID, now + Lease)
    return b.LastID, now, now + Lease, cost, ops[0]
  end

  -- book returns the five of Ticket.
  function book(slot, cost, number, again, now)
    local n = b.New
    if n.Tickets == 0 then
      n.Epoch, n.Units, n.Last = max(1, now), 0, slot
    end
    n.Tickets = n.Tickets + 1
    n.Units = n.Units + cost
    n.Last = max(n.Last, slot)
    return slot, n.Epoch, cost, number, again
  end

  function quiet(now)
    return tickets() == 0 and b.Closed <= now and b.Claim <= now
  end
end

if asked[Settle] or asked[Cancel] or asked[Renew] then
  function settle(lease, cost, now)
    if not b or not release(lease.ID) then
      return false
    end
    local mostSamples, longestHold = 64, 2 ^ 40
    local held = min(max(0, now - lease.Begin), longestHold)
    if b.Samples < mostSamples then
      b.Samples = b.Samples + 1
    else
      b.Held = b.Held - div(b.Held, mostSamples)
    end
    b.Held = b.Held + held
    charge(lease, cost, now)
    return true
  end

  function charge(lease, cost, now)
    local more = cost - lease.Cost
    for i = 0, #windows do
      local w, change = windows[i], more
      if more < 0 then
        local left, n = lease.Left, refreshes(w, lease.Begin, now)
        if i > 0 and n > 0 then
          left = w.Size
        elseif i > 0 then
          left = w.Size - lease.Cost
        end
        local room = max(0, w.Size - (left + n * w.RefreshRate))
        change = -min(-more, room)
      end
      ops[i] = min(w.Size, ops[i] - change)
      if wait.Last > now and (change > 0 or spare(w)) then
        wait[i] = min(w.Size, wait[i] - change)
      end
    end
  end

  function cancel(op, now)
    if not b then
      return false
    end
    local found = false
    if release(op.Lease.ID) then
      charge(op.Lease, 0, now)
      found = true
    end
    if op.Ticket.Epoch > 0 and unbook(op.Ticket, now) then
      found = true
    end
    return found
  end

  -- renew returns Found and the five of Lease.
  function renew(lease, now)
    if not b or not release(lease.ID) then
      return 0, 0, 0, 0, 0, 0
    end
    lease.End = min(now + Lease, lease.Begin + MaxLease)
    hold(lease.ID, lease.End)
    return lease.End > now and 1 or 0, lease.ID, lease.Begin, lease.End, lease.Cost, lease.Left
  end
end

if asked[Throttle] or asked[Reset] then
  function throttle(to, now)
    booking()
    b.Closed = max(b.Closed, to)
    for i = 0, #windows do
      local w = windows[i]
      if spare(w) then
        ops[i] = min(ops[i], -dry(w, ops.Last, b.Closed))
      end
    end
  end

  function reset(now)
    b.Leases, b.Closed, b.Old, b.New = '', 0, none(), none()
    late.Last = min(late.Last, now)
    wait.Last = min(wait.Last, now - RefreshInterval)
  end
end

function spare(w)
  return w.Size > w.RefreshRate
end

function dry(w, now, open)
  return refreshes(w, now, open - 1) * w.RefreshRate
end

function capacity(line, i, t)
  return gain(windows[i], line.Last, line[i], t)
end

function unbook(t, now)
  local book = b.New
  if t.Epoch ~= book.Epoch then
    book = b.Old
  end
  if t.Epoch ~= book.Epoch or book.Tickets == 0 then
    return false
  end
  book.Tickets = book.Tickets - 1
  book.Units = book.Units - min(max(0, t.Cost), book.Units)
  if book.Tickets == 0 then
    book.Units = 0
  end
  if tickets() == 0 then
    wait.Last, wait[0] = now - RefreshInterval, 0
  end
  return true
end

function tidy(now)
  local n = 0
  while n < #b.Leases and unpack('>i8', b.Leases, n + 9) <= now do
    n = n + 16
  end
  if n > 0 then
    b.Leases = sub(b.Leases, n + 1)
  end
  while b.Old.Tickets > 0 and now > b.Old.Last + grace() or b.Old.Tickets == 0 and b.New.Tickets > 0 do
    b.Old, b.New = b.New, none()
  end
end

function grace()
  local longestGrace = 60000
  return min(RefreshInterval, longestGrace) + 1000
end

function tickets()
  return b.Old.Tickets + b.New.Tickets
end

function units()
  return b.Old.Units + b.New.Units
end

-- Leases are the bytes that are stored, ID and End of each.
function hold(id, to)
  local n = #b.Leases
  while n > 0 and unpack('>i8', b.Leases, n - 7) > to do
    n = n - 16
  end
  b.Leases = sub(b.Leases, 1, n) .. pack('>i8i8', id, to) .. sub(b.Leases, n + 1)
end

function release(id)
  local bytes = pack('>i8', id)
  local at = string.find(b.Leases, bytes, 1, true)
  while at and at % 16 ~= 1 do
    at = string.find(b.Leases, bytes, at + 1, true)
  end
  if at then
    b.Leases = sub(b.Leases, 1, at - 1) .. sub(b.Leases, at + 16)
  end
  return at ~= nil
end

function forget()
  ops, wait = {Last = Start, [0] = 0}, {Last = Start - RefreshInterval, [0] = 0}
  if b then
    b = nil
    booking()
  end
end

-- until_ is Limits.until without plain tokens, and what of it is not promises only: see store.lua.
function until_()
  local from = max(ops.Last, Start)
  local needed = from
  for i = 0, #windows do
    local w = windows[i]
    local missing = max(w.Size, w.Size - ops[i])
    needed = max(needed, from + (div(missing - 1, w.RefreshRate) + 2) * w.RefreshInterval)
  end
  local to = wait.Last + RefreshInterval
  if b then
    needed = max(needed, b.Closed)
    if #b.Leases > 0 then
      local last = unpack('>i8', b.Leases, #b.Leases - 7)
      needed = max(needed, last)
    end
    to = max(to, late.Last + RefreshInterval, b.Claim)
    if tickets() > 0 then
      to = max(to, max(b.Old.Last, b.New.Last) + (grace() + 1))
    end
  end
  return max(to, needed), needed
end

function booking()
  if not b then
    late = {Last = 0, [0] = 0}
    b = {
      Closed = 0, Held = 0, Samples = 0, LastID = 0, Next = 0, Claim = 0, Old = none(), New = none(),
      windows = {[0] = windows[0]}, Leases = '',
    }
  end
  for i = #b.windows, #windows + 1, -1 do
    b.windows[i] = nil
  end
  for i = #b.windows + 1, #windows do
    local c = ops.Last > Start and windows[i].Size or 0
    ops[i], wait[i], late[i] = c, c, c
    b.windows[i] = windows[i]
  end
end

function adopt(now)
  local changed = false
  for i = 0, #windows do
    local before, w = b.windows[i], windows[i]
    changed = changed or before.Size ~= w.Size or before.RefreshRate ~= w.RefreshRate
      or before.RefreshInterval ~= w.RefreshInterval
  end
  if not changed then
    return
  end
  for i = 0, #windows do
    local before, w = b.windows[i], windows[i]
    local p = gain(before, ops.Last, ops[i], now)
    if p <= 0 and now < b.Closed and spare(before) and spare(w) then
      local lacks = dry(before, now, b.Closed)
      if p <= -lacks then
        p = p + lacks - dry(w, now, b.Closed)
      end
    end
    ops[i] = min(p, w.Size)
    b.windows[i] = w
  end
  ops.Last = now
end

function inUse()
  return b and InUse + #b.Leases / 16 or InUse
end

function none()
  return {Epoch = 0, Tickets = 0, Units = 0, Last = 0}
end

function gain(w, last, capacity, t)
  return min(w.Size, capacity + refreshes(w, last, t) * w.RefreshRate)
end

function refreshes(w, from, t)
  return max(0, interval(w, t) - interval(w, from))
end

function interval(w, t)
  return (t - t % w.RefreshInterval) / w.RefreshInterval
end

-- mul is for a >= 0 and b >= 0, div for a >= 0 and b > 0.
function mul(a, b)
  inexact = inexact or a * b >= limit
  return a * b
end

function div(a, b)
  inexact = inexact or a >= limit
  return (a - a % b) / b
end
