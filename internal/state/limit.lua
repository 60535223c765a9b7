-- GCRA: one number for each key, the time at which its bucket will be full.
-- Times are microseconds of this server's clock, so that the clocks of the
-- callers do not matter. A double holds them exactly.
--
-- KEYS[1]  the bucket
-- ARGV[1]  microseconds in which one unit fills
-- ARGV[2]  burst
-- ARGV[3]  cost
-- Returns the microseconds to wait; 0: taken.
local unit, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = tonumber(redis.call('GET', KEYS[1]) or now)
-- The upper bound is for a clock that went back, and for a limit that changed.
full = math.min(math.max(full, now), now + burst * unit) + cost * unit
local wait = math.ceil(full - burst * unit - now)
if wait > 0 then
  return wait
end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000))
return 0
