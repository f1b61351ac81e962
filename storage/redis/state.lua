-- The script that does operations begins here: what it is asked, and what is stored.
--
-- KEYS[1]    the entity's key
-- ARGV[1]    big-endian int64: Size, RefreshRate, RefreshInterval, WaitForToken, Start, Concurrency, Lease and MaxLease
--            of the Limits, and the three of each of Windows
-- ARGV[2]    Options.MaxHold in milliseconds, in decimal, as it is mostly passed on
-- ARGV[3..]  the operations. Each is a byte, its Kind, and then big-endian int64: Now, Cost, For, the five of Ticket
--            and of Lease. Of GetDelay and ReturnToken it is Now only, or nothing for OwnClock
--
-- Returns the Answers one after the other as big-endian int64, of each what its Kind sets: Delay and Bound of GetDelay;
-- the same of Admit, and then the five of Lease for a Delay of 0, else the five of Ticket; Found of ReturnToken, Settle
-- and Cancel; Found and the five of Lease of Renew. After an error nothing has changed.
--
-- They are one string, and not a table of numbers, because Redis takes half a microsecond to look what a table is.

local limit = 2 ^ 52
local inexact = false

local Size, RefreshRate, RefreshInterval, WaitForToken, Start, Concurrency = unpack('>i8i8i8i8i8i8', ARGV[1])
if Concurrency == 0 then
  Concurrency = Size
end

-- The State, but for its Booking. Without a value it is Limits.New.
local OpsLast, OpsCapacity, WaitLast, WaitCapacity, InUse, Until = Start, 0, Start - RefreshInterval, 0, 0, 0
local revision, clock = 0, 0
if value then
  revision, clock, OpsLast, OpsCapacity, WaitLast, WaitCapacity, InUse, Until = unpack('>i8i8i8i8i8i8i8i8', value)
end

-- plain tells that there is no Booking and none will be needed.
local plain = #ARGV[1] == 64 and not (value and #value > 64)
for i = 3, #ARGV do
  local op = ARGV[i]
  plain = plain and (op == '\0' or op == '\1' or string.byte(op) == 0)
end

local millis = (micros - micros % 1000) / 1000
local known = value -- or something is to be stored
local answers = {} -- the bytes of each
local now -- what the last operation was told
local till, needed -- by when the State would be as good as new, and by when but for what is promised
local booked = '' -- the bytes of Booking
