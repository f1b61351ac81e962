-- This is storage/admit.go.

local sub, rep = string.sub, string.rep
local mostSamples, longestHold, longestGrace = 64, 2 ^ 40, 60000

-- The ledgers. The capacity of a line's i-th window is in s by the name of capacities for i = 0, else by
-- 3*(i-1)+line.
local ops, wait, late = 1, 2, 3
local lasts = {'OpsLast', 'WaitLast', 'LateLast'}
local capacities = {'OpsCapacity', 'WaitCapacity', 'LateCapacity'}

local decide, bound, promise, queue, quarters, root, spend, capacity, lease, settle, charge, cancel, renew, throttle
local reset, unbook, book, tidy, grace, quiet, tickets, units, hold, release, forget, Until, booking, adopt, window, inUse
local ledger, mul, mulTime

function decide(op, now)
  local admit, b = op.Admit, s.Booking
  local cost, t, again = 1, nil, nil
  if admit then
    cost, t = op.Cost, op.Ticket
    again = t.Again
  end
  local back = admit and t.Epoch > 0 and t.Slot <= max(now, b.Old.Last, b.New.Last)
  if back then
    unbook(t, now)
  end
  local due = back and t.Slot <= now
  local delay, why, slot = 0, nil, nil
  if not b or not back and cost == 1 and quiet(now) and l.windows == 0
    and not (admit and b.Samples > 0 and inUse() >= l.Concurrency) then
    delay, why = classic(now, inUse())
    slot = s.WaitLast
  else
    why = bound(cost, due, now)
    local short = inUse() >= l.Concurrency or not back and now < b.Claim
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
    s.InUse = s.InUse + 1
  elseif admit then
    local number = t.Number
    if not back then
      b.Next = b.Next + 1
      number, again = b.Next, 0
    end
    return delay, why, book(slot, cost, number, again, now)
  end
  return delay, why
end

function bound(cost, due, now)
  if now < s.Booking.Closed then
    return BoundClosed
  end
  local booked = due and 0 or units()
  for i = 0, l.windows do
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
  local last = lasts[line]
  if s[last] <= now then
    for i = 0, l.windows do
      s[ledger(line, i)] = capacity(ops, i, now) - booked
    end
    s[last] = now
  end
  local slot = max(s[last], s.Booking.Closed)
  for i = 0, l.windows do
    local w = window(i)
    local missing = cost - s[ledger(line, i)]
    if missing > 0 then
      local intervals = div(missing - 1, w.RefreshRate) + 1
      slot = max(slot, mulTime(interval(w, s[last]) + intervals, w.RefreshInterval))
    end
  end
  slot = max(slot, now + 1)
  spend(line, slot, cost)
  return slot
end

function queue(t, due, now)
  local b = s.Booking
  local n = tickets() + 1
  if not due then
    return quarters(4 * n - 8 * root(n))
  end
  b.Claim = min(max(b.Claim, now) + quarters(1), now + quarters(n))
  n = max(1, min(n, t.Number - (b.Next - n)))
  return max(quarters(4 * n - 8 * root(n)), b.Claim - now)
end

function quarters(n)
  local b, c = s.Booking, l.Concurrency
  local held = b.Held + mul(c, l.WaitForToken)
  return max(1, div(mul(max(1, n), held), mul(4, mul(c, b.Samples + 1))))
end

function root(n)
  return math.floor(math.sqrt(n))
end

function spend(line, t, cost)
  for i = 0, l.windows do
    s[ledger(line, i)] = capacity(line, i, t) - cost
  end
  s[lasts[line]] = t
end

function capacity(line, i, t)
  return gain(window(i), s[lasts[line]], s[ledger(line, i)], t)
end

function lease(cost, now)
  local b = s.Booking
  b.LastID = max(b.LastID + 1, max(0, now) * 1024)
  hold(b.LastID, now + l.Lease)
  return b.LastID, now, now + l.Lease, cost, s.OpsCapacity
end

function settle(lease, cost, now)
  local b = s.Booking
  if not b or not release(lease.ID) then
    return false
  end
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
  for i = 0, l.windows do
    local w, change = window(i), more
    if more < 0 then
      local left, n = lease.Left, refreshes(window(i), lease.Begin, now)
      if i > 0 and n > 0 then
        left = w.Size
      elseif i > 0 then
        left = w.Size - lease.Cost
      end
      local room = max(0, w.Size - (left + n * w.RefreshRate))
      change = -min(-more, room)
    end
    local p = ledger(ops, i)
    s[p] = min(w.Size, s[p] - change)
    if s.WaitLast > now and (change > 0 or w.Size > w.RefreshRate) then
      p = ledger(wait, i)
      s[p] = min(w.Size, s[p] - change)
    end
  end
end

function cancel(op, now)
  if not s.Booking then
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

function renew(lease, now)
  if not s.Booking or not release(lease.ID) then
    return 0, 0, 0, 0, 0, 0
  end
  lease.End = min(now + l.Lease, lease.Begin + l.MaxLease)
  hold(lease.ID, lease.End)
  return lease.End > now and 1 or 0, lease.ID, lease.Begin, lease.End, lease.Cost, lease.Left
end

function throttle(till, now)
  local b = booking()
  b.Closed = max(b.Closed, till)
  for i = 0, l.windows do
    local w = window(i)
    if w.Size > w.RefreshRate then
      local p = ledger(ops, i)
      s[p] = min(s[p], -(refreshes(w, s.OpsLast, b.Closed - 1) * w.RefreshRate))
    end
  end
  if s.WaitLast < b.Closed then
    for i = 0, l.windows do
      s[ledger(wait, i)] = capacity(ops, i, b.Closed) - units()
    end
    s.WaitLast = b.Closed
  end
end

function reset(now)
  local b = s.Booking
  b.Leases, b.Closed = '', 0
  b.Old = {Epoch = 0, Tickets = 0, Units = 0, Last = 0}
  b.New = {Epoch = 0, Tickets = 0, Units = 0, Last = 0}
  s.LateLast = min(s.LateLast, now)
  s.WaitLast = min(s.WaitLast, now - l.RefreshInterval)
end

function unbook(t, now)
  local b = s.Booking
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
    s.WaitLast, s.WaitCapacity = now - l.RefreshInterval, 0
  end
  return true
end

function book(slot, cost, number, again, now)
  local n = s.Booking.New
  if n.Tickets == 0 then
    n.Epoch, n.Units, n.Last = max(1, now), 0, slot
  end
  n.Tickets = n.Tickets + 1
  n.Units = n.Units + cost
  n.Last = max(n.Last, slot)
  return slot, n.Epoch, cost, number, again
end

function tidy(now)
  local b = s.Booking
  local n = 0
  while n < #b.Leases and unpack('>i8', b.Leases, n + 9) <= now do
    n = n + 16
  end
  if n > 0 then
    b.Leases = sub(b.Leases, n + 1)
  end
  while b.Old.Tickets > 0 and now > b.Old.Last + grace() or b.Old.Tickets == 0 and b.New.Tickets > 0 do
    b.Old, b.New = b.New, {Epoch = 0, Tickets = 0, Units = 0, Last = 0}
  end
end

function grace()
  return min(l.RefreshInterval, longestGrace) + 1000
end

function quiet(now)
  return tickets() == 0 and s.Booking.Closed <= now and s.Booking.Claim <= now
end

function tickets()
  return s.Booking.Old.Tickets + s.Booking.New.Tickets
end

function units()
  return s.Booking.Old.Units + s.Booking.New.Units
end

-- Leases are the bytes that are stored, ID and End of each.
function hold(id, till)
  local b = s.Booking
  local n = #b.Leases
  while n > 0 and unpack('>i8', b.Leases, n - 7) > till do
    n = n - 16
  end
  b.Leases = sub(b.Leases, 1, n) .. pack('>i8i8', id, till) .. sub(b.Leases, n + 1)
end

function release(id)
  local b = s.Booking
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
  local booked = s.Booking
  s = New()
  if booked then
    booking()
  end
end

-- Until is Limits.until but for plain tokens, and until when an entity is needed besides them and what only promises.
function Until()
  local from = max(s.OpsLast, l.Start)
  local till = from
  for i = 0, l.windows do
    till = max(till, full(window(i), from, s[ledger(ops, i)]))
  end
  local b = s.Booking
  if b then
    till = max(till, b.Closed)
    if #b.Leases > 0 then
      local last = unpack('>i8', b.Leases, #b.Leases - 7)
      till = max(till, last)
    end
  end
  local needed = till
  till = max(till, s.WaitLast + l.RefreshInterval)
  if b then
    till = max(till, s.LateLast + l.RefreshInterval, b.Claim)
    if tickets() > 0 then
      till = max(till, max(b.Old.Last, b.New.Last) + (grace() + 1))
    end
  end
  return till, needed
end

function booking()
  local b = s.Booking
  if not b then
    b = {
      [0] = l, Closed = 0, Held = 0, Samples = 0, LastID = 0, Next = 0, Claim = 0, Further = 0, Leases = '',
      Old = {Epoch = 0, Tickets = 0, Units = 0, Last = 0},
      New = {Epoch = 0, Tickets = 0, Units = 0, Last = 0},
    }
    s.LateLast, s.LateCapacity, s.Booking = 0, 0, b
  end
  for i = b.Further + 1, l.windows do
    local c = s.OpsLast > l.Start and l[i].Size or 0
    s[ledger(ops, i)], s[ledger(wait, i)], s[ledger(late, i)] = c, c, c
    b[i] = l[i]
  end
  b.Further = l.windows
  return b
end

function adopt(now)
  local b = s.Booking
  local changed = false
  for i = 0, l.windows do
    local before, w = b[i], window(i)
    changed = changed or before.Size ~= w.Size or before.RefreshRate ~= w.RefreshRate
      or before.RefreshInterval ~= w.RefreshInterval
  end
  if not changed then
    return
  end
  for i = 0, l.windows do
    local p = ledger(ops, i)
    s[p] = min(gain(b[i], s.OpsLast, s[p], now), window(i).Size)
    b[i] = window(i)
  end
  s.OpsLast = now
end

function window(i)
  if i == 0 then
    return l
  end
  return l[i]
end

function inUse()
  if not s.Booking then
    return s.InUse
  end
  return s.InUse + #s.Booking.Leases / 16
end

function ledger(line, i)
  if i > 0 then
    return 3 * (i - 1) + line
  end
  return capacities[line]
end

function mulTime(n, interval)
  return n * interval
end

-- mul is for a >= 0 and b >= 0.
function mul(a, b)
  inexact = inexact or a * b >= limit
  return a * b
end
