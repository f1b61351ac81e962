-- This is storage/op.go, and what surrounds Limits.Apply: the rest of the state is read, then the operations, which are
-- done and answered.

local OwnClock = -2 ^ 63
local six, twenty = '>i8i8i8i8i8i8', '>i8i8i8i8i8i8i8i8i8i8i8i8i8i8i8i8i8i8i8i8'

for i = 1, (#ARGV[1] - 64) / 24 do
  local w = {}
  w.Size, w.RefreshRate, w.RefreshInterval = unpack('>i8i8i8', ARGV[1], 41 + 24 * i)
  windows[i] = w
end
if value and #value > 64 then
  if #value < 232 then
    return redis.error_reply('DRIPSTATE')
  end
  local LateLast, LateCapacity, Closed, Held, Samples, LastID, Next, Claim, OldEpoch, OldTickets, OldUnits, OldLast,
    NewEpoch, NewTickets, NewUnits, NewLast, Size, RefreshRate, RefreshInterval, further = unpack(twenty, value, 65)
  local from = 233 + 48 * further -- of the leases
  if further < 0 or #value < from - 1 then
    return redis.error_reply('DRIPSTATE')
  end
  local held = unpack('>i8', value, from - 8)
  if held < 0 or #value < from - 1 + 16 * held then
    return redis.error_reply('DRIPSTATE')
  end
  late = {Last = LateLast, [0] = LateCapacity}
  b = {
    Closed = Closed, Held = Held, Samples = Samples, LastID = LastID, Next = Next, Claim = Claim,
    Old = {Epoch = OldEpoch, Tickets = OldTickets, Units = OldUnits, Last = OldLast},
    New = {Epoch = NewEpoch, Tickets = NewTickets, Units = NewUnits, Last = NewLast},
    windows = {[0] = {Size = Size, RefreshRate = RefreshRate, RefreshInterval = RefreshInterval}},
    Leases = sub(value, from, from - 1 + 16 * held),
  }
  for i = 1, further do
    local w = {}
    ops[i], wait[i], late[i], w.Size, w.RefreshRate, w.RefreshInterval = unpack(six, value, 177 + 48 * i)
    b.windows[i] = w
  end
end

for i = 3, #ARGV do
  local arg, at = ARGV[i], OwnClock
  local Kind, op, answer = string.byte(arg), nil, ''
  if #arg == 105 then
    local Now, Cost, For, Slot, Epoch, Booked, Number, Again, ID, Begin, End, Charged, Left =
      unpack('>i8i8i8i8i8i8i8i8i8i8i8i8i8', arg, 2)
    at, op = Now, {
      Cost = Cost, For = For,
      Ticket = {Slot = Slot, Epoch = Epoch, Cost = Booked, Number = Number, Again = Again},
      Lease = {ID = ID, Begin = Begin, End = End, Cost = Charged, Left = Left},
    }
  elseif #arg == 9 then
    at = unpack('>i8', arg, 2)
  end
  local Timed = Kind ~= ReturnToken
  if Timed and (known or Kind == GetDelay or Kind == Admit or Kind == Throttle or Kind == Pause) then
    clock = 1
    if at == OwnClock then
      clock, at = 0, millis
    end
    known, now = true, at
  end
  if known then -- from here on it is Apply
    if Timed and at >= Until and InUse == 0 then
      forget()
    end
    at = max(at, ops.Last)
    if b or #windows > 0 or Kind == Admit then
      booking()
      if Timed then
        adopt(at)
        tidy(at)
      end
    end
    if Kind == GetDelay then
      answer = pack('>i8i8', decide(nil, at))
    elseif Kind == Admit then
      answer = pack('>i8i8i8i8i8i8i8', decide(op, at))
    elseif Kind == ReturnToken then
      answer = pack('>i8', InUse > 0 and 1 or 0)
      InUse = max(0, InUse - 1)
    elseif Kind == Settle then
      answer = pack('>i8', settle(op.Lease, op.Cost, at) and 1 or 0)
    elseif Kind == Cancel then
      answer = pack('>i8', cancel(op, at) and 1 or 0)
    elseif Kind == Renew then
      answer = pack('>i8i8i8i8i8i8', renew(op.Lease, at))
    elseif Kind == Throttle then
      throttle(at + op.For, at)
    elseif Kind == Pause then
      booking()
      b.Closed = at + op.For
    elseif Kind == Resume then
      if b then
        b.Closed = 0
      end
    elseif Kind == Reset then
      InUse = 0
      if b then
        reset(at)
      end
    end
    till, needed = until_()
    Until = InUse > 0 and limit or till
  elseif Kind == Renew then
    answer = pack('>i8i8i8i8i8i8', 0, 0, 0, 0, 0, 0)
  elseif Kind < Resume then
    answer = pack('>i8', 0)
  end
  answers[i - 2] = answer
  if b then -- all numbers are to be exact. Those of the first window only grow until store.lua looks at them
    local most = max(late.Last, b.Closed, b.Held, b.Next, b.Claim,
      b.Old.Epoch, b.Old.Tickets, b.Old.Units, b.Old.Last, b.New.Epoch, b.New.Tickets, b.New.Units, b.New.Last)
    local least = min(late.Last, b.Closed)
    for j = 0, #windows do
      most, least = max(most, ops[j], wait[j], late[j]), min(least, ops[j], wait[j], late[j])
    end
    if max(most, wait.Last) >= limit or min(least, wait.Last) <= -limit
      or b.LastID >= 2 * limit then -- to which nothing but 1 is added
      return redis.error_reply('DRIPRANGE')
    end
  end
end

OpsLast, OpsCapacity, WaitLast, WaitCapacity = ops.Last, ops[0], wait.Last, wait[0]
if b then
  local w = b.windows[0]
  booked = pack(twenty, late.Last, late[0], b.Closed, b.Held, b.Samples, b.LastID, b.Next, b.Claim,
    b.Old.Epoch, b.Old.Tickets, b.Old.Units, b.Old.Last, b.New.Epoch, b.New.Tickets, b.New.Units, b.New.Last,
    w.Size, w.RefreshRate, w.RefreshInterval, #windows)
  for i = 1, #windows do
    w = b.windows[i]
    booked = booked .. pack(six, ops[i], wait[i], late[i], w.Size, w.RefreshRate, w.RefreshInterval)
  end
  booked = booked .. pack('>i8', #b.Leases / 16) .. b.Leases
end
