-- Writes records of revocations, each only if it is newer than the one that is
-- there, and tells all replicas. A new one counts by this clock, or is not
-- written: nobody may believe that it is.
--
-- KEYS[1]  hash: field of a target → "CHANGED UNTIL JSON", CHANGED in
--          microseconds, UNTIL in milliseconds; also the name of the channel
-- ARGV[1]  how many records there may be
-- ARGV[2]  milliseconds for which a record is kept after its end, because the
--          clocks of the replicas may be late
-- ARGV[3]  microseconds by which CHANGED may be ahead of this clock; a record
--          that is further ahead is taken for none, or nothing could follow it
-- ARGV[4…] for each record FIELD, CHANGED (0: new), UNTIL, JSON
-- Returns how many were written; -1: there is no room, and nothing was.
local key, most, grace, ahead = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local changed, count, last = {}, 0, 0
local all = redis.call('HGETALL', key)
for i = 1, #all, 2 do
  local at, ends = string.match(all[i + 1], '^(%d+) (%d+) ')
  at, ends = tonumber(at or 0), tonumber(ends or 0) + grace
  if ends * 1000 <= now or at > now + ahead then
    redis.call('HDEL', key, all[i])
  else
    changed[all[i]] = at
    count = count + 1
    last = math.max(last, ends)
  end
end

local new = {}
for i = 4, #ARGV, 4 do
  local field, at, ends = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]) + grace
  local old, counts = changed[field], ends * 1000 > now
  if at == 0 then
    at = math.max(now, (old or 0) + 1)
    counts = (ends - grace) * 1000 > now
  end
  if at > (old or 0) and at <= now + ahead and counts then
    if not old then
      count = count + 1
    end
    changed[field] = at
    last = math.max(last, ends)
    table.insert(new, field)
    table.insert(new, string.format('%.0f %s %s', at, ARGV[i + 2], ARGV[i + 3]))
  end
end
if #new == 0 then
  return 0
end
if count > most then
  return -1
end
for i = 1, #new, 2 do
  redis.call('HSET', key, new[i], new[i + 1])
end
-- PEXPIREAT refuses what is beyond 64 bits, and others can write any end.
redis.call('PEXPIREAT', key, string.format('%.0f', math.min(last, 2 ^ 53)))
redis.call('PUBLISH', key, 'changed')
return #new / 2
