-- This is storage/op.go.

local GetDelay, ReturnToken, Admit, Settle, Cancel, Renew, Throttle, Pause, Resume, Reset = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
local OwnClock = -2 ^ 63
local twenty = '>i8i8i8i8i8i8i8i8i8i8i8i8i8i8i8i8i8i8i8i8'

local n = 0 -- of answers

local function Apply(op, now)
  local Kind = op.Kind
  local Timed = Kind ~= ReturnToken
  if Timed and now >= s.Until and s.InUse == 0 then
    forget()
  end
  now = max(now, s.OpsLast)
  if s.Booking or l.windows > 0 or Kind == Admit then
    booking()
    if Timed then
      adopt(now)
      tidy(now)
    end
  end
  if Kind == GetDelay then
    answers[n + 1], answers[n + 2] = decide(op, now)
  elseif Kind == Admit then
    answers[n + 1], answers[n + 2], answers[n + 3], answers[n + 4], answers[n + 5], answers[n + 6], answers[n + 7] =
      decide(op, now)
  elseif Kind == ReturnToken then
    answers[n + 1] = s.InUse > 0 and 1 or 0
    s.InUse = max(0, s.InUse - 1)
  elseif Kind == Settle then
    answers[n + 1] = settle(op.Lease, op.Cost, now) and 1 or 0
  elseif Kind == Cancel then
    answers[n + 1] = cancel(op, now) and 1 or 0
  elseif Kind == Renew then
    answers[n + 1], answers[n + 2], answers[n + 3], answers[n + 4], answers[n + 5], answers[n + 6] = renew(op.Lease, now)
  elseif Kind == Throttle then
    throttle(now + op.For, now)
  elseif Kind == Pause then
    booking().Closed = now + op.For
  elseif Kind == Resume then
    if s.Booking then
      s.Booking.Closed = 0
    end
  elseif Kind == Reset then
    s.InUse = 0
    if s.Booking then
      reset(now)
    end
  end
  n = #answers
  s.Until = s.InUse > 0 and limit or Until()
end

-- This is what surrounds Apply: the rest of limits and state is read, then the operations, and done and answered.

l.Lease, l.MaxLease = unpack('>i8i8', ARGV[1], 57)
l.windows = (#ARGV[1] - 72) / 24
for i = 1, l.windows do
  local Size, RefreshRate, RefreshInterval = unpack('>i8i8i8', ARGV[1], 49 + 24 * i)
  l[i] = {Size = Size, RefreshRate = RefreshRate, RefreshInterval = RefreshInterval}
end
if value and #value > 64 then
  if #value < 232 then
    return redis.error_reply('DRIPSTATE')
  end
  local b, Old, New, Window = {}, {}, {}, {}
  s.LateLast, s.LateCapacity, b.Closed, b.Held, b.Samples, b.LastID, b.Next, b.Claim,
    Old.Epoch, Old.Tickets, Old.Units, Old.Last, New.Epoch, New.Tickets, New.Units, New.Last,
    Window.Size, Window.RefreshRate, Window.RefreshInterval, b.Further = unpack(twenty, value, 65)
  local from = 233 + 48 * b.Further -- of the leases
  if b.Further < 0 or #value < from - 1 then
    return redis.error_reply('DRIPSTATE')
  end
  for i = 1, b.Further do
    local w = {}
    s[ledger(ops, i)], s[ledger(wait, i)], s[ledger(late, i)], w.Size, w.RefreshRate, w.RefreshInterval =
      unpack('>i8i8i8i8i8i8', value, 177 + 48 * i)
    b[i] = w
  end
  local held = unpack('>i8', value, from - 8)
  if held < 0 or #value < from - 1 + 16 * held then
    return redis.error_reply('DRIPSTATE')
  end
  b.Leases = sub(value, from, from - 1 + 16 * held)
  b[0], b.Old, b.New, s.Booking = Window, Old, New, b
end

local function read(arg)
  local t, lease = {}, {}
  local op = {Kind = string.byte(arg), Ticket = t, Lease = lease}
  op.Admit = op.Kind == Admit
  op.Now, op.Cost, op.For, t.Slot, t.Epoch, t.Cost, t.Number, t.Again,
    lease.ID, lease.Begin, lease.End, lease.Cost, lease.Left = unpack('>' .. rep('i8', 13), arg .. rep('\0', 105 - #arg), 2)
  if #arg == 1 then
    op.Now = OwnClock
  end
  return op
end

-- exact tells whether all numbers are, but for those that op.lua looks at in the end and that only grow until then.
local function exact()
  local b = s.Booking
  local most = max(s.WaitLast, s.WaitCapacity, s.LateLast, s.LateCapacity, b.Closed, b.Held, b.Next, b.Claim,
    b.Old.Epoch, b.Old.Tickets, b.Old.Units, b.Old.Last, b.New.Epoch, b.New.Tickets, b.New.Units, b.New.Last)
  local least = min(s.OpsCapacity, s.WaitLast, s.WaitCapacity, s.LateLast, s.LateCapacity, b.Closed)
  for i = 1, 3 * l.windows do
    most, least = max(most, s[i]), min(least, s[i])
  end
  return most < limit and least > -limit and b.LastID < 2 * limit -- of which nothing is added to another
end

for i = 2, #ARGV do
  local op = read(ARGV[i])
  local Kind, at = op.Kind, op.Now
  if known or Kind == GetDelay or Kind == Admit or Kind == Throttle or Kind == Pause then
    known = true
    if Kind ~= ReturnToken then
      clock = 1
      if at == OwnClock then
        clock, at = 0, millis
      end
      now = at
    end
    Apply(op, at)
    if s.Booking and not exact() then
      return redis.error_reply('DRIPRANGE')
    end
  else
    for _ = 1, Kind == Renew and 6 or Kind < Resume and 1 or 0 do
      n = n + 1
      answers[n] = 0
    end
  end
end

if known then
  till, needed = Until()
end
local b = s.Booking
booked = ''
if b then
  booked = pack(twenty, s.LateLast, s.LateCapacity, b.Closed, b.Held, b.Samples, b.LastID, b.Next, b.Claim,
    b.Old.Epoch, b.Old.Tickets, b.Old.Units, b.Old.Last, b.New.Epoch, b.New.Tickets, b.New.Units, b.New.Last,
    b[0].Size, b[0].RefreshRate, b[0].RefreshInterval, b.Further)
  for i = 1, b.Further do
    booked = booked .. pack('>i8i8i8i8i8i8', s[ledger(ops, i)], s[ledger(wait, i)], s[ledger(late, i)],
      b[i].Size, b[i].RefreshRate, b[i].RefreshInterval)
  end
  booked = booked .. pack('>i8', #b.Leases / 16) .. b.Leases
end
