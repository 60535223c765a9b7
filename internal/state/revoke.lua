-- Writes records of revocations, each only if it is newer than the one that is
-- there, and tells all replicas.
--
-- KEYS[1]  hash: field of a target → "CHANGED UNTIL JSON", CHANGED in
--          microseconds, UNTIL in milliseconds; also the name of the channel
-- ARGV[1]  how many records there may be
-- ARGV[2]  milliseconds for which a record is kept after its end, because the
--          clocks of the replicas may be late
-- ARGV[3…] for each record FIELD, CHANGED (0: now), UNTIL, JSON
-- Returns how many were written; -1: there is no room, and nothing was.
local key, most, grace = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local changed, count, last = {}, 0, 0
local all = redis.call('HGETALL', key)
for i = 1, #all, 2 do
  local at, ends = string.match(all[i + 1], '^(%d+) (%d+) ')
  ends = tonumber(ends or 0) + grace
  if ends * 1000 <= now then
    redis.call('HDEL', key, all[i])
  else
    changed[all[i]] = tonumber(at)
    count = count + 1
    last = math.max(last, ends)
  end
end

local new = {}
for i = 3, #ARGV, 4 do
  local field, at, ends = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]) + grace
  local old = changed[field]
  if at == 0 then
    at = math.max(now, (old or 0) + 1)
  end
  if at > (old or 0) and ends * 1000 > now then
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
redis.call('PEXPIREAT', key, string.format('%.0f', last))
redis.call('PUBLISH', key, 'changed')
return #new / 2
