-- GCRA: one number for each key, the time at which its bucket will be full.
-- Times are microseconds of this server's clock, so that the clocks of the
-- callers do not matter. A double holds them exactly.
--
-- KEYS[1]  the bucket
-- ARGV[1]  microseconds in which one unit fills
-- ARGV[2]  burst
-- ARGV[3]  cost
-- ARGV[4]  of the units that are left, one in so many is taken in advance; 0: none
-- Returns the microseconds to wait; 0 or below: taken, and as many in advance.
local unit, burst, cost, oneIn = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
-- A clock that went back, or a limit that changed: the bucket is empty, and
-- begins to fill.
local empty = now + burst * unit
if full > empty then
  full = empty
  redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000))
end
full = full + cost * unit
local wait = math.ceil(full - burst * unit - now)
if wait > 0 then
  return wait
end
local advance = 0
if oneIn > 0 then
  advance = math.floor((now + burst * unit - full) / unit / oneIn)
end
full = full + advance * unit
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000))
return -advance
